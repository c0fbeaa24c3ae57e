"""Embedding tables: rows out by position, gradients back into rows by a kernel of our own (`accumulate_rows`)."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes

from ..kernels.added_rows import accumulate_rows
from .matmul import accumulator
from .registry import lowers
from .taps import take

aten = torch.ops.aten


@lowers(aten.embedding.default, fuses=True)
def embedding(weight: Tensor, indices: Tensor, padding_idx=-1, scale_grad_by_freq=False, sparse=False) -> Tensor:
    return take(weight, 0, indices)


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    kept = accumulator(grad.dtype)
    index = indices.reshape(-1)
    if padding_idx >= 0:
        index = (index == padding_idx).where(-1, index)
    table = accumulate_rows(grad.cast(kept).reshape(index.shape[0], grad.shape[-1]), index, num_weights)
    if scale_grad_by_freq:
        uses = accumulate_rows(Tensor.ones(index.shape[0], 1, dtype=kept), index, num_weights)
        table = table / uses.maximum(1)
    return table


@lowers(aten.embedding_renorm.default)
def embedding_renorm(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Rows that are used and longer than max_norm, cut to it."""
    kept = accumulator(weight.dtype)
    values = weight.cast(kept)
    if norm_type == 2:
        norm = (values * values).sum(1, keepdim=True).sqrt()
    elif math.isinf(norm_type):
        norm = values.abs().max(1, keepdim=True)
    else:
        norm = (values.abs() ** norm_type).sum(1, keepdim=True) ** (1 / norm_type)
    index = indices.reshape(-1)
    used = accumulate_rows(Tensor.ones(index.shape[0], 1, dtype=dtypes.float32), index, weight.shape[0]) > 0
    return (used & (norm > max_norm)).where(values * (max_norm / (norm + 1e-7)), values)
