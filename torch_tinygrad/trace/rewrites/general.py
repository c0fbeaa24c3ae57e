"""Rewrites that belong to no family."""

from __future__ import annotations

import torch

from .registry import rewrites

aten = torch.ops.aten


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


@rewrites(aten._addmm_activation.default)
def addmm_activation(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta=1, alpha=1, use_gelu: bool = False):
    """PyTorch's decomposition computes half types in single precision; its kernel rounds the product."""
    result = torch.addmm(bias, a, b, beta=beta, alpha=alpha)
    return aten.gelu(result) if use_gelu else aten.relu(result)
