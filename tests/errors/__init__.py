"""What is refused, in the CPU's words, and what is left of everything else after a failure."""
