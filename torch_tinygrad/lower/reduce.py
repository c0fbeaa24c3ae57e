"""Reductions. Half types accumulate in float32, integers and bools sum in int64, and maxima propagate nan."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

from torch_tinygrad.kernels.threads import stored
from torch_tinygrad.lower import maths as m
from torch_tinygrad.lower.maths import widen
from torch_tinygrad.lower.registry import lowers
from torch_tinygrad.trace.decisions import decide, is_one_of_many

aten = torch.ops.aten


def axes_of(x: Tensor, dim) -> tuple[int, ...]:
    """The axes a `dim` argument names: none given means all of them."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(x.ndim))
    listed = dim if isinstance(dim, (list, tuple)) else (dim,)
    return tuple(sorted({d % x.ndim for d in listed})) if x.ndim else ()


def count_of(x: Tensor, axes: tuple[int, ...]) -> int:
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return count


# Sums of float32 of at least so many elements are added up in float64: one after the other, additions to a large sum
# lose digits, where the CPU adds by blocks.
LONG_SUM = 512
# A float sum of this many elements to one is nested: tinygrad adds in order and splits only longer ones itself.
NESTED_SUM = range(128, 32769)


def total(x: Tensor, axes: tuple[int, ...], keepdim: bool, dtype: DType) -> Tensor:
    return from_zero(added(x.cast(widen(dtype)), axes, keepdim))


def from_zero(x: Tensor) -> Tensor:
    """Sums start at 0, so that zeros of either sign add up to 0.0."""
    return x + 0.0 if dtypes.is_float(x.dtype) else x


def added(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    if is_one_of_many() and dtypes.is_float(x.dtype):
        return _added_at_any_size(x, axes, keepdim)
    if x.dtype == dtypes.float32 and m.widest_float() == dtypes.float64 and count_of(x, axes) >= LONG_SUM:
        return added(x.cast(dtypes.float64), axes, keepdim).cast(x.dtype)
    count = x.numel()
    if dtypes.is_float(x.dtype) and len(axes) == x.ndim and count in NESTED_SUM:
        inner = next(k for k in range(math.isqrt(count), 0, -1) if count % k == 0)
        nested = x.reshape(count // inner, inner).sum(1, dtype=x.dtype).sum(0, dtype=x.dtype)
        return nested.reshape((1,) * x.ndim) if keepdim else nested
    return x.sum(axes, keepdim=keepdim, dtype=x.dtype)


def _added_at_any_size(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    """Where sizes vary there is nothing to nest by: long sums are added up in double precision instead, in two kernels
    if they are very long."""
    is_whole, is_long = len(axes) == x.ndim, decide("long sum", count_of(x, axes) >= NESTED_SUM.stop)
    if not is_whole and not is_long:
        return x.sum(axes, keepdim=keepdim, dtype=x.dtype)
    wide = x.cast(dtypes.float64)
    if is_whole and is_long and x.ndim > 1:
        wide = stored(wide.sum(-1, keepdim=True))
    return wide.sum(axes, keepdim=keepdim).cast(x.dtype)


@lowers(aten.sum.default)
def sum_all(x, *, meta):
    return total(x, axes_of(x, None), False, meta[0].tiny)


@lowers(aten.sum.dim_IntList)
def sum_dim(x, dim, keepdim=False, *, meta):
    return total(x, axes_of(x, dim), keepdim, meta[0].tiny)


@lowers(aten.mean.default)
def mean_all(x, *, meta):
    return mean_dim(x, None, meta=meta)


@lowers(aten.mean.dim)
def mean_dim(x, dim, keepdim=False, *, meta):
    axes = axes_of(x, dim)
    count = count_of(x, axes)
    summed = total(x, axes, keepdim, meta[0].tiny)
    return summed / count if count else m.constant(m.NAN, summed.dtype, summed.shape)


def sortable(x: Tensor) -> Tensor:
    """Unsigned integers in the order of x, where any nan is the largest (and -0.0 < 0.0)."""
    if x.dtype == dtypes.bool or dtypes.is_unsigned(x.dtype):
        return x if x.dtype == dtypes.uint64 else x.cast(dtypes.uint32)
    if dtypes.is_float(x.dtype):
        x = x.cast(widen(x.dtype))
        x = x.isnan().where(m.constant(m.NAN, x.dtype), x)
    elif x.dtype != dtypes.int64:
        x = x.cast(dtypes.int32)
    unsigned, top = (dtypes.uint64, 1 << 63) if x.dtype.itemsize == 8 else (dtypes.uint32, 1 << 31)
    bits = x.bitcast(unsigned)
    return (bits < top).where(bits ^ top, ~bits) if dtypes.is_float(x.dtype) else bits ^ top


def unsortable(key: Tensor, dtype: DType) -> Tensor:
    """The values whose `sortable` integers these are, in the dtype they are computed in."""
    if dtype == dtypes.bool or dtypes.is_unsigned(dtype):
        return key.cast(dtype)
    top, signed = 1 << (key.dtype.bitsize - 1), {4: dtypes.int32, 8: dtypes.int64}[key.dtype.itemsize]
    if not dtypes.is_float(dtype):
        return (key ^ top).bitcast(signed).cast(dtype)
    return (key < top).where(~key, key ^ top).bitcast(widen(dtype))


def largest(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    return unsortable(sortable(x).max(axes, keepdim=keepdim), x.dtype)


def reversed_order(x: Tensor) -> Tensor:
    return x.logical_not() if x.dtype == dtypes.bool else -x if dtypes.is_float(x.dtype) else ~x


def smallest(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    return reversed_order(largest(reversed_order(x), axes, keepdim))


def first_largest(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Values and indices of the first largest element along an axis, the axis kept. Where key and index fit into 64
    bits together, one reduction finds both. Zeros of either sign are equal, and the first keeps its sign: a bit below
    the index."""
    count = x.shape[axis]
    negative = None
    if dtypes.is_float(x.dtype):
        zero = x.eq(0)
        negative = zero & m.sign_bit(x)
        x = zero.where(0, x)
    wide = dtypes.int64 if 2 * count > 2**31 else dtypes.int32
    backward = ((count - 1) - m.index_range(count, wide)).reshape(
        tuple(count if i == axis else 1 for i in range(x.ndim))
    )
    place = backward if negative is None else backward * 2 + negative.cast(wide)
    key = sortable(x)
    if key.dtype == dtypes.uint32 and count < 2**31:
        low = place.cast(dtypes.int64).bitcast(dtypes.uint64)  # a cast would merge index arithmetic with uint64
        packed = ((key.cast(dtypes.uint64) << 32) | low).max(axis, keepdim=True)
        best, found = (packed >> 32).cast(dtypes.uint32), (packed & 0xFFFFFFFF).cast(dtypes.int64)
    else:
        best = key.max(axis, keepdim=True)
        found = key.eq(best).where(place, -1).max(axis, keepdim=True).cast(dtypes.int64)
    value = unsortable(best, x.dtype)
    if negative is None:
        return value, (count - 1) - found
    return (found & 1).ne(0).where(m.constant(-0.0, value.dtype), value), (count - 1) - (found >> 1)


def extreme_dim(x: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    if x.ndim == 0:
        return x, m.constant(0, dtypes.int64)
    axis = dim % x.ndim
    values, indices = first_largest(x, axis)
    return (values, indices) if keepdim else (values.squeeze(axis), indices.squeeze(axis))


@lowers(aten.max.default)
def max_all(x):
    return largest(x, axes_of(x, None), False)


@lowers(aten.min.default)
def min_all(x):
    return smallest(x, axes_of(x, None), False)


@lowers(aten.amax.default)
def amax(x, dim=(), keepdim=False):
    return largest(x, axes_of(x, dim), keepdim)


@lowers(aten.amin.default)
def amin(x, dim=(), keepdim=False):
    return smallest(x, axes_of(x, dim), keepdim)


@lowers(aten.max.dim)
def max_dim(x, dim, keepdim=False):
    return extreme_dim(x, dim, keepdim)


@lowers(aten.min.dim)
def min_dim(x, dim, keepdim=False):
    values, indices = extreme_dim(reversed_order(x), dim, keepdim)
    return reversed_order(values), indices


def extreme_index(x: Tensor, dim, keepdim: bool, shape: tuple[int, ...]) -> Tensor:
    if dim is None:
        return extreme_dim(x.reshape(-1), 0, False)[1].reshape(shape)
    return extreme_dim(x, dim, keepdim)[1]


@lowers(aten.argmax.default)
def argmax(x, dim=None, keepdim=False, *, meta):
    return extreme_index(x, dim, keepdim, meta[0].shape)


@lowers(aten.argmin.default)
def argmin(x, dim=None, keepdim=False, *, meta):
    return extreme_index(reversed_order(x), dim, keepdim, meta[0].shape)


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
def any_(x, dim=None, keepdim=False):
    return x.cast(dtypes.bool).max(axes_of(x, dim), keepdim=keepdim)


@lowers(aten.all.default, aten.all.dim, aten.all.dims)
def all_(x, dim=None, keepdim=False):
    return x.cast(dtypes.bool).logical_not().max(axes_of(x, dim), keepdim=keepdim).logical_not()
