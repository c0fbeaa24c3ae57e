"""Operators whose work depends on where a mask is true: running counts, search in sorted rows, and from both the
positions of a known number of true elements in O(n + k log n)."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

from torch_tinygrad.kernels.arrays import positions, zeros
from torch_tinygrad.kernels.counting import running_count, search
from torch_tinygrad.trace.geometry import strides_of

from .registry import Meta, lowers, result_dtype

aten = torch.ops.aten


def true_positions(mask: Tensor, count: int) -> Tensor:
    """Where the first `count` true elements of a flat mask are; `mask.numel()` for those that do not exist."""
    counts = running_count(mask.reshape(1, mask.numel()))
    wanted = (positions(count) + 1).reshape(1, count)
    return search(counts, wanted, right=False).reshape(count)


def nonzero(x: Tensor, count: int) -> Tensor:
    """`torch.nonzero` of a tensor known to have `count` non-zero elements."""
    if not count or not x.numel():
        return zeros((count, x.ndim), dtypes.int64)
    if not x.ndim:
        return zeros((count, 0), dtypes.int64)
    return Tensor.stack(*mask_indices(x != 0, count), dim=1)


def mask_indices(mask: Tensor, count: int) -> list[Tensor]:
    """The index tensors that a mask with `count` true elements stands for, one per dimension."""
    flat = true_positions(mask.flatten(), count) if mask.numel() else zeros((count,), dtypes.int32)
    sizes = zip(mask.shape, strides_of(tuple(mask.shape)), strict=True)
    return [flat // step % size for size, step in sizes]


@lowers(aten.nonzero.default)
def nonzero_of_known_size(x: Tensor, *, meta: tuple[Meta, ...]) -> Tensor:
    return nonzero(x, meta[0].shape[0])


@lowers(aten.nonzero_static.default)
def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    if not size or not x.ndim or not x.numel():
        return Tensor.full((size, x.ndim), fill_value, dtype=dtypes.int64, buffer=False)
    found = positions(size, 0, 2) < (x != 0).sum(dtype=dtypes.int32)
    return found.where(nonzero(x, size), fill_value)


def _searched(rows: Tensor, values: Tensor, right: bool, side: str | None, sorter: Tensor | None) -> Tensor:
    right = right or side == "right"
    dtype = result_dtype(rows, values)
    dtype = dtypes.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else dtype
    rows, values = rows.cast(dtype), values.cast(dtype)
    size = rows.shape[-1]
    if rows.ndim == 1:
        rows, flat = rows.reshape(1, size), values.reshape(1, values.numel())
        sorter = None if sorter is None else sorter.reshape(1, size)
    else:
        lead = math.prod(rows.shape[:-1])
        rows, flat = rows.reshape(lead, size), values.reshape(lead, values.shape[-1])
        sorter = None if sorter is None else sorter.reshape(lead, size)
    return search(rows, flat, right, sorter).reshape(values.shape)


def _as_tensor(value, dtype: DType) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor.full((), value, dtype=dtype, buffer=False)


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    rows: Tensor,
    values: Tensor | float,
    *,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    return _searched(rows, _as_tensor(values, rows.dtype), right, side, sorter)


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(values: Tensor | float, boundaries: Tensor, *, right: bool = False) -> Tensor:
    return _searched(boundaries, _as_tensor(values, boundaries.dtype), right, None, None)


@lowers(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: Tensor, *, meta: tuple[Meta, ...]) -> Tensor:
    """Element i belongs to the first entry whose running total exceeds i."""
    count = meta[0].shape[0]
    totals = running_count(repeats.reshape(1, repeats.numel()))
    return search(totals, positions(count).reshape(1, count), right=True).reshape(count)
