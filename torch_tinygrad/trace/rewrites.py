"""Decompositions of our own, for operators that PyTorch's tables leave out or write in operators nobody lowers.

They run on Meta tensors that lie over their storages as the real ones do, so views and writes mean what they say.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

aten = torch.ops.aten
REWRITES: dict[torch._ops.OpOverload, Callable] = {}


def rewrites(*overloads: torch._ops.OpOverload):
    """Registers the decorated function as the decomposition of these overloads."""

    def register(function: Callable) -> Callable:
        for overload in overloads:
            REWRITES[overload] = function
        return function

    return register


@rewrites(aten.as_strided_scatter.default)
def as_strided_scatter(x: torch.Tensor, source: torch.Tensor, size, stride, storage_offset=None) -> torch.Tensor:
    """Written into a copy of everything up to the last element of `x`, so that the copy lies as `x` does."""
    last = x.storage_offset() + sum((s - 1) * st for s, st in zip(x.shape, x.stride(), strict=True))
    copy = x.as_strided((last + 1 if x.numel() else 0,), (1,), 0).clone()
    result = copy.as_strided(x.size(), x.stride(), x.storage_offset())
    result.as_strided(size, stride, storage_offset).copy_(source)
    return result


@rewrites(aten.linalg_cross.default)
def cross(a: torch.Tensor, b: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """PyTorch's decomposition computes half types in single precision; its kernel rounds every product."""
    a, b = torch.broadcast_tensors(a, b)
    return a.roll(-1, dim) * b.roll(-2, dim) - a.roll(-2, dim) * b.roll(-1, dim)
