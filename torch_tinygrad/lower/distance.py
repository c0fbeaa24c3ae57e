"""Distances between all rows of two matrices, with their gradient: norms of differences that are never stored."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor

from . import elementary as e
from . import maths as m
from .pointwise import sign_float
from .registry import Meta, lowers
from .statistics import vector_norm

aten = torch.ops.aten


def differences(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-2) - b.unsqueeze(-3)


def slope(difference: Tensor, distance: Tensor, p: float) -> Tensor:
    """Derivative of the distance by one coordinate; zero where the distance has none."""
    if p == 0:
        return difference.const_like(0)
    if p == 1:
        return sign_float(difference)
    if p == math.inf:
        return m.absolute(difference).eq(distance).where(sign_float(difference), 0)
    size, flat = m.absolute(difference), distance.eq(0)
    if p < 1:
        flat = flat | difference.eq(0)
    ratio = flat.where(0, size) / flat.where(1, distance)
    steep = ratio if p == 2 else e.power_size(flat.where(1, ratio), ratio.const_like(p - 1))
    return flat.where(0, sign_float(difference) * steep)


def exponent(p: float, meta: tuple[Meta, ...]) -> float:
    """PyTorch rounds it to the type of the distances: from about 1e39 on it is infinite in single precision."""
    return torch.tensor(p, dtype=meta[0].dtype).item()


@lowers(aten._cdist_forward.default)
def cdist(a: Tensor, b: Tensor, p: float, compute_mode=None, *, meta) -> Tensor:
    return vector_norm(differences(a, b), exponent(p, meta), (-1,), False)


@lowers(aten._cdist_backward.default)
def cdist_backward(grad: Tensor, a: Tensor, b: Tensor, p: float, distance: Tensor, *, meta) -> Tensor:
    result = (slope(differences(a, b), distance.unsqueeze(-1), exponent(p, meta)) * grad.unsqueeze(-1)).sum(-2)
    shape = meta[0].shape
    extra = tuple(range(result.ndim - len(shape)))
    result = result.sum(extra) if extra else result
    shared = tuple(i for i, (have, want) in enumerate(zip(result.shape, shape, strict=True)) if have != want)
    return result.sum(shared, keepdim=True) if shared else result
