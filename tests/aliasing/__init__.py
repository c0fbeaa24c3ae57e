"""Views, in-place writes and gradients through them: every alias reads every write, as on the CPU."""
