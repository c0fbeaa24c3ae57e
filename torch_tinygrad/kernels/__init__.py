"""Kernels of our own, written as loops: the language for them, and those that several operator families call."""

from .. import corrections

# Before the first value is made, by this room or by one above it: all of them import this one.
corrections.apply()
