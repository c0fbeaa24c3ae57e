"""Bags of embedding rows: sums and means are rows added by bag, without a one-hot product; maxima compare all pairs of
bag and index."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels.added_rows import accumulate_rows

from .matmul import accumulator
from .registry import lowers
from .taps import positions, take

aten = torch.ops.aten
SUM, MEAN, MAX = range(3)


def bag_of(offsets: Tensor, bags: int, count: int) -> Tensor:
    """The bag of each index: how many bags start at or before it, less one."""
    starts = accumulate_rows(Tensor.ones(bags, 1, dtype=dtypes.int32), offsets[:bags], count + 1)
    return starts.reshape(-1)[:count].cumsum(0).cast(dtypes.int32) - 1


def without(index: Tensor, indices: Tensor, padding_idx: int) -> Tensor:
    """`index`, -1 where the embedding is the padding."""
    return index if padding_idx < 0 else (indices == padding_idx).where(-1, index)


def largest(rows: Tensor, indices: Tensor, bag: Tensor, bags: int) -> tuple[Tensor, Tensor]:
    """Per bag and column the largest value and whose it is; 0 for an empty bag."""
    count = indices.shape[0]
    member = (bag == positions(bags).unsqueeze(1)).unsqueeze(-1)
    top = member.where(rows, -math.inf).max(1)
    first = (member & (rows == top.unsqueeze(1))).where(positions(count).unsqueeze(-1), count).min(1)
    filled = member.any(1)
    return filled.where(top, 0), take(indices, 0, first)


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=SUM,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
    *,
    meta,
) -> tuple[Tensor, ...]:
    kept, bags, count = accumulator(weight.dtype), meta[0].shape[0], indices.shape[0]
    zeros = [Tensor.zeros(*m.shape, dtype=m.tiny) for m in meta]
    if not count or not bags:
        return tuple(zeros)
    bag = bag_of(offsets, bags, count)
    counted = without(bag, indices, padding_idx)
    rows = take(weight, 0, indices).cast(kept)
    sizes = accumulate_rows(Tensor.ones(count, 1, dtype=dtypes.int32), counted, bags).reshape(-1)
    maxima = zeros[3]
    if mode == MAX:
        result, maxima = largest(rows, indices, counted, bags)
    else:
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.cast(kept).unsqueeze(1)
        result = accumulate_rows(rows, counted, bags)
        if mode == MEAN:
            result = result / sizes.maximum(1).cast(kept).unsqueeze(1)
            maxima = sizes if meta[3].shape == (bags,) else maxima
    return (
        result,
        bag if meta[1].shape == (count,) else zeros[1],
        sizes if mode != SUM and meta[2].shape == (bags,) else zeros[2],
        maxima,
    )


@lowers(aten._embedding_bag_dense_backward.default)
def embedding_bag_dense_backward(
    grad,
    indices,
    offset2bag,
    bag_size,
    maximum_indices,
    num_weights,
    scale_grad_by_freq,
    mode,
    per_sample_weights,
    padding_idx=-1,
) -> Tensor:
    kept = accumulator(grad.dtype)
    grad = grad.cast(kept)
    if mode == MAX:
        filled = (bag_size > 0).reshape(-1, 1)
        chosen = (maximum_indices == positions(num_weights).reshape(-1, 1, 1)) & filled
        return chosen.where(grad, 0).sum(1, dtype=kept)
    if mode == MEAN:
        grad = grad / bag_size.maximum(1).cast(kept).unsqueeze(1)
    shares = take(grad, 0, offset2bag)
    if per_sample_weights is not None:
        shares = shares * per_sample_weights.cast(kept).unsqueeze(1)
    table = accumulate_rows(shares, without(indices, indices, padding_idx), num_weights)
    if scale_grad_by_freq:
        uses = accumulate_rows(Tensor.ones(indices.shape[0], 1, dtype=kept), indices, num_weights)
        table = table / uses.maximum(1)
    return table


@lowers(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    grad,
    indices,
    offsets,
    offset2bag,
    bag_size,
    maximum_indices,
    num_weights,
    scale_grad_by_freq,
    mode,
    sparse,
    per_sample_weights,
    padding_idx=-1,
) -> Tensor:
    if offset2bag.shape != indices.shape:
        offset2bag = bag_of(offsets, grad.shape[0], indices.shape[0])
    return embedding_bag_dense_backward(
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@lowers(aten._embedding_bag_per_sample_weights_backward.default)
def per_sample_weights_backward(grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1) -> Tensor:
    kept = accumulator(grad.dtype)
    if offset2bag.shape != indices.shape:
        offset2bag = bag_of(offsets, grad.shape[0], indices.shape[0])
    share = (take(grad.cast(kept), 0, offset2bag) * take(weight.cast(kept), 0, indices)).sum(1, dtype=kept)
    return share if padding_idx < 0 else (indices == padding_idx).where(0, share)
