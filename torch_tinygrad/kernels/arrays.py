"""What kernels and lowerings alike make their operands of: positions, zeros, casts, rows taken by index, products and
sums that are rounded once."""

from __future__ import annotations

import math

from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType
from tinygrad.uop.ops import Ops


def positions(size: int, dim: int = 0, ndim: int = 1) -> Tensor:
    """0, 1, ... size-1 along `dim` of a tensor of `ndim` dimensions."""
    dtype = dtypes.int32 if size < 2**31 else dtypes.int64
    return Tensor.arange(size, dtype=dtype).reshape(tuple(size if d == dim else 1 for d in range(ndim)))


def zeros(shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Zeros that fold into their users instead of becoming a buffer."""
    return Tensor.full(shape, 0, dtype=dtype, buffer=False)


def cast(value, dtype: DType):
    """A tensor in `dtype`; a number stays a number (tinygrad's constants are weak)."""
    return value.cast(dtype) if isinstance(value, Tensor) and value.dtype != dtype else value


def fused(a, b, c):
    """a * b + c of values of one dtype, rounded once. Nothing else is: see `corrections/arithmetic.py`."""
    return a.alu(Ops.MULACC, b, c)


def take_rows(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """`x` with dimension `dim` replaced by the dimensions of the non-negative `index`."""
    before, after = tuple(x.shape[:dim]), tuple(x.shape[dim + 1 :])
    shape = (*before, *index.shape, *after)
    if 0 in shape or not x.shape[dim]:
        return zeros(shape, x.dtype)
    if x.shape[dim] == 1:
        return x.reshape((*before, *(1 for _ in index.shape), *after)).expand(shape)
    size, whole, count = x.shape[dim], _unsplittable(x.shape[dim]), index.numel()
    rows = x.reshape(math.prod(before), 1, size, math.prod(after))
    index = index.reshape(1, count, 1, 1)
    taken = _one_hot_sum(rows.shrink((None, None, (0, whole), None)), index)
    if whole < size:
        rest = _one_hot_sum(rows.shrink((None, None, (whole, size), None)), index - whole)
        taken = (index.squeeze(2) < whole).where(taken, rest)
    return taken.reshape(shape)


def _one_hot_sum(rows: Tensor, index: Tensor) -> Tensor:
    return (index == positions(rows.shape[2], 2, 4)).where(rows, 0).sum(2, dtype=rows.dtype)


def _unsplittable(size: int) -> int:
    """The greatest size, up to this one, that tinygrad's scheduler has no reason to reduce in two kernels: it splits
    big reductions by a divisor from 8 to 256, and would not see that this one is about to become a direct load."""
    if size >= 32768:
        while any(size % d == 0 for d in range(8, 257)):
            size -= 1
    return size
