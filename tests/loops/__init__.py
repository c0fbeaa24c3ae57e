"""Loops of a user's program: one kernel, or programs that serve any number of steps."""
