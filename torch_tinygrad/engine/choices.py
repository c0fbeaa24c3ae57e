"""Choices of ours in the place of tinygrad's own, made before anything is scheduled or compiled: what is stored, how
loops are cut, which compiler is called. Where tinygrad is wrong it is corrected: `corrections/`."""

from __future__ import annotations

from .. import clang, corrections
from . import cut_loops, fusion, kernel_cache, loop_choice


def apply() -> None:
    """Safe to call more than once."""
    corrections.apply()  # in a process that compiles kernels alone, nothing has made a value before
    kernel_cache.apply()
    clang.provide()
    fusion.apply()
    loop_choice.apply()
    cut_loops.apply()
