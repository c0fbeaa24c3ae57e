"""The table of our own decompositions."""

from __future__ import annotations

from collections.abc import Callable

import torch

REWRITES: dict[torch._ops.OpOverload, Callable] = {}


def rewrites(*overloads: torch._ops.OpOverload):
    """Registers the decorated function as the decomposition of these overloads."""

    def register(function: Callable) -> Callable:
        for overload in overloads:
            REWRITES[overload] = function
        return function

    return register
