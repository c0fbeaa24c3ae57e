"""Kernels of our own, written as loops: the language for them, and those that several operator families call."""
