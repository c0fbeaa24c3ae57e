"""Reductions that are neither sums nor maxima over an axis: over runs of varying length, and exclusive or."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels.arrays import zeros

from ..kernels.loops import Loops, Value, as_index, run_each
from .maths import widest_float
from .registry import Meta, lowers
from .scan import running_sum
from .shape import positive

aten = torch.ops.aten


def _greater(old: Value, new: Value) -> Value:
    return ((old < new) | new.ne(new)).where(new, old)


def _smaller(old: Value, new: Value) -> Value:
    return ((new < old) | new.ne(new)).where(new, old)


# How two elements combine, and what they start from.
REDUCTIONS = {
    "sum": (lambda old, new: old + new, 0.0),
    "mean": (lambda old, new: old + new, 0.0),
    "prod": (lambda old, new: old * new, 1.0),
    "max": (_greater, -math.inf),
    "min": (_smaller, math.inf),
}


@lowers(aten.segment_reduce.default)
def segment_reduce(
    data,
    reduce,
    *,
    lengths=None,
    indices=None,
    offsets=None,
    axis=0,
    unsafe=False,
    initial=None,
    meta: tuple[Meta, ...],
):
    shape = meta[0].shape
    if 0 in shape:
        return zeros(shape, data.dtype)
    combine, start = REDUCTIONS[reduce]
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    count, size = shape[axis], data.shape[axis]
    if lengths is not None:
        ends = running_sum(lengths.cast(dtypes.int32), lengths.ndim - 1)
        begins = ends - lengths.cast(dtypes.int32)
    else:
        edge = tuple((0, s) for s in offsets.shape[:-1])
        begins, ends = (offsets.cast(dtypes.int32).shrink((*edge, (i, i + count))) for i in (0, 1))
    # There may be more rows of them than of data.
    rows = [t.reshape(-1, count, 1).shrink(((0, outer), None, None)) for t in (begins, ends)]
    begins, ends = (t.expand(outer, count, inner).contiguous() for t in rows)
    first = start if initial is None else float(initial)
    if not size:
        total = Tensor.full((outer, count, inner), first, dtype=data.dtype)
    else:

        def body(k: Loops, out: Value, begins: Value, ends: Value, data: Value) -> None:
            end = k.load(ends, k.problem)
            at, total = k.variable(k.load(begins, k.problem), dtypes.int32), k.variable(first, out.dtype)
            where = k.problem // (count * inner) * (size * inner) + k.problem % inner
            with k.repeat(lambda: k.value(at) < end):
                now = k.value(at)
                value = k.load(data, where + as_index(now, size) * inner)
                k.set(total, combine(k.value(total), (now < end).where(value, start)))
                k.set(at, now + 1)
            k.store((out, k.problem, k.value(total)))

        like = zeros((outer, count, inner), data.dtype)
        total = run_each("segment_reduce", body, like, begins, ends, whole=(data,))
    if reduce == "mean":
        length = (ends - begins).cast(data.dtype)
        empty = total if initial is not None else math.nan
        total = length.eq(0).where(empty, total / length)
    return total.reshape(shape)


@lowers(aten.hash_tensor.default)
def hash_tensor(x, dim=(), *, keepdim=False, mode=0, meta: tuple[Meta, ...]):
    """Exclusive or of the elements' bits, as 64-bit numbers, by halves."""
    x = x if x.ndim else x.reshape(1)
    dims = sorted(positive(d, x.ndim) for d in (dim or range(x.ndim)))
    wide = x.cast(widest_float()) if dtypes.is_float(x.dtype) else x.cast(dtypes.int64)
    bits = wide.bitcast(dtypes.uint64) if wide.dtype.itemsize == 8 else wide.bitcast(dtypes.uint32).cast(dtypes.uint64)
    kept = [d for d in range(x.ndim) if d not in dims]
    rows = bits.permute(*kept, *dims).reshape(math.prod(x.shape[d] for d in kept), math.prod(x.shape[d] for d in dims))
    if 0 in rows.shape:
        return zeros(meta[0].shape, dtypes.uint64)
    while (size := rows.shape[1]) > 1:
        half = (size + 1) // 2
        other = rows.shrink((None, (half, size))).pad((None, (0, 2 * half - size)))
        rows = (rows.shrink((None, (0, half))) ^ other).contiguous()
    return rows.reshape(meta[0].shape)
