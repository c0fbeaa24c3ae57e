"""Corrections of tinygrad: what is wrong for PyTorch's numbers, endless or slow in its own rules.

Each is a function under `@correction`, with the version it is for and the test that shows it; its first lines say what
goes wrong without it. All are applied at one moment: when `kernels/`, which every room that makes values imports, is
imported. What an upgrade of tinygrad must check: docs/tinygrad.md."""

from . import arithmetic, constants, llvm, loops, pairs, parameters, rendering, wgsl
from .registry import ALL, Correction, apply

__all__ = [
    "ALL",
    "Correction",
    "apply",
    "arithmetic",
    "constants",
    "llvm",
    "loops",
    "pairs",
    "parameters",
    "rendering",
    "wgsl",
]
