"""Running sums, products, maxima and log-sums. Long axes are scanned in chunks, and the chunks' totals by the same
function, so that work stays linear in the length and depth logarithmic. How many chunks of chunks that takes depends on
the length: programs for many sizes scan element after element instead."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels.scans import scanned_in_turn
from torch_tinygrad.kernels.threads import in_parallel
from torch_tinygrad.lower import elementary as e
from torch_tinygrad.lower import maths as m
from torch_tinygrad.lower.arithmetic import log_add
from torch_tinygrad.lower.maths import widen, widest_float
from torch_tinygrad.lower.reduce import from_zero, reversed_order, sortable, unsortable
from torch_tinygrad.lower.registry import lowers
from torch_tinygrad.trace.decisions import is_one_of_many

aten = torch.ops.aten
CHUNK = 32


def scan(x: Tensor, axis: int, short: Callable, combine: Callable, identity, in_turn: bool = True) -> Tensor:
    """The inclusive scan along an axis; `short` scans a last axis of at most CHUNK * 2 elements. `in_turn`: whether
    `combine` can do so in a loop."""
    if x.ndim == 0 or x.numel() == 0:
        return x
    moved = x.transpose(axis, -1)
    if in_turn and is_one_of_many() and not in_parallel(x):
        rows = moved.reshape(math.prod(moved.shape[:-1]), moved.shape[-1])
        scanned = scanned_in_turn(rows, x.dtype, combine, identity, "scan")
        return scanned.reshape(moved.shape).transpose(axis, -1)
    return scan_last(moved, short, combine, identity).transpose(axis, -1)


def scan_last(x: Tensor, short: Callable, combine: Callable, identity) -> Tensor:
    length = x.shape[-1]
    if length <= 2 * CHUNK:
        return short(x)
    chunks = -(-length // CHUNK)
    lead = tuple((0, 0) for _ in x.shape[:-1])
    padded = x.pad((*lead, (0, chunks * CHUNK - length)), value=identity)
    inner = short(padded.reshape(*x.shape[:-1], chunks, CHUNK)).contiguous()
    totals = scan_last(inner[..., -1], short, combine, identity)
    before = totals[..., :-1].pad((*lead, (1, 0)), value=identity)
    return combine(before.unsqueeze(-1), inner).reshape(*x.shape[:-1], chunks * CHUNK)[..., :length]


def running_sum(x: Tensor, axis: int) -> Tensor:
    return scan(x, axis, lambda t: t.cumsum(-1), lambda a, b: a + b, 0)


def running_max(x: Tensor, axis: int) -> Tensor:
    return scan(x, axis, lambda t: t.cummax(-1)[0], lambda a, b: a.maximum(b), x.dtype.min)


def short_log_sum(x: Tensor) -> Tensor:
    """Every prefix's log-sum-exp, shifted by its own maximum."""
    length = x.shape[-1]
    top = x.cummax(-1)[0]
    shift = m.absolute(top).eq(m.INF).where(0.0, top).unsqueeze(-1)
    seen = m.index_range(length).reshape(1, length) < m.index_range(length).reshape(length, 1) + 1
    return e.log(seen.where(e.exp(x.unsqueeze(-2) - shift), 0.0).sum(-1)) + shift.squeeze(-1)


@lowers(aten.cumsum.default)
def cumsum(x, dim, *, meta):
    # as the CPU: what is added to a long sum is not lost
    dtype = widest_float() if meta[0].dtype.is_floating_point else meta[0].tiny
    return from_zero(running_sum(x.cast(dtype), dim))


@lowers(aten.cumprod.default)
def cumprod(x, dim, *, meta):
    # long float products drift in float32; the CPU, too, accumulates them in float64
    dtype = widest_float() if meta[0].dtype.is_floating_point else meta[0].tiny
    return scan(x.cast(dtype), dim, lambda t: t.cumprod(-1), lambda a, b: a * b, 1)


@lowers(aten.logcumsumexp.default, aten._logcumsumexp.default)
def logcumsumexp(x, dim, *, meta):
    return scan(x.cast(widen(meta[0].tiny)), dim, short_log_sum, log_add, -m.INF, in_turn=False)


def running_extreme(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Running maxima and the index of the last element that reached each. Zeros of either sign are equal, and the last
    keeps its sign: a bit below the index."""
    if x.ndim == 0 or x.numel() == 0:
        return x, m.constant(0, dtypes.int64, x.shape)
    axis, count = dim % x.ndim, x.shape[dim % x.ndim]
    place = m.index_range(count, dtypes.int64 if 2 * count > 2**31 else dtypes.int32)
    place = place.reshape(tuple(count if i == axis else 1 for i in range(x.ndim)))
    is_float = dtypes.is_float(x.dtype)
    if is_float:
        zero = x.eq(0)
        place = place * 2 + (zero & m.sign_bit(x)).cast(place.dtype)
        x = zero.where(0, x)
    key = sortable(x).contiguous()
    best = running_max(key, axis).contiguous()
    reached = running_max(key.eq(best).where(place, 0), axis).cast(dtypes.int64)
    values = unsortable(best, x.dtype)
    if not is_float:
        return values, reached
    reached = reached.contiguous()
    return (reached & 1).ne(0).where(m.constant(-0.0, values.dtype), values), reached >> 1


@lowers(aten.cummax.default)
def cummax(x, dim):
    return running_extreme(x, dim)


@lowers(aten.cummin.default)
def cummin(x, dim):
    values, indices = running_extreme(reversed_order(x), dim)
    return reversed_order(values), indices
