"""Running counts along rows, and search in sorted rows."""

from __future__ import annotations

import math
import operator

from tinygrad import Tensor, dtypes
from tinygrad.dtype import AddrSpace
from tinygrad.uop.ops import AxisType, KernelInfo, UOp

from torch_tinygrad.trace.decisions import Diverged, decide, is_one_of_many

from .arrays import positions, zeros
from .scans import scanned_in_turn
from .threads import LANES, call, in_parallel, lanes_of, thread_ranges


def running_count(x: Tensor) -> Tensor:
    """Inclusive running sums, in int32, along the last dimension of a 2-dim tensor of bools or integers."""
    rows, size = x.shape
    if 0 in x.shape:
        return zeros((rows, size), dtypes.int32)
    pieces = lanes_of(math.ceil(size / 64)) if in_parallel(x) else 1
    length = math.ceil(size / pieces)
    padded = x.pad((None, (0, pieces * length - size))) if pieces * length > size else x
    counted = scanned_in_turn(padded.reshape(rows * pieces, length), dtypes.int32, operator.add, 0, "running_count")
    if pieces > 1:
        counted = counted.reshape(rows, pieces, length)
        totals = counted.shrink((None, None, (length - 1, length))).squeeze(2).contiguous()
        before = positions(pieces, 0, 2) > positions(pieces, 1, 2)
        counted = counted + before.where(totals.unsqueeze(1), 0).sum(2, dtype=dtypes.int32).unsqueeze(2)
    return counted.reshape(rows, pieces * length).shrink((None, (0, size)))


# A program for many sizes has steps for sizes so many times the usual one, as a power of two.
SPARE_STEPS = 7


def _search_steps(size: int) -> int:
    """How often a row is halved until one place is left."""
    if not is_one_of_many():
        return size.bit_length()
    steps = decide("search", min(size.bit_length() + SPARE_STEPS, 31))
    if size.bit_length() > steps:
        raise Diverged("rows too long for the search of the usual ones")
    return steps


def search(rows: Tensor, values: Tensor, right: bool, order: Tensor | None = None) -> Tensor:
    """For each of `values` (R, Q), how many elements of its sorted row (R or 1, n) come before it. `order` gives the
    positions that sort the row when it is not sorted itself."""
    (batch, queries), size = values.shape, rows.shape[1]
    if 0 in (batch, queries, size):
        return zeros((batch, queries), dtypes.int32)
    if in_parallel(rows) and queries % LANES:
        padded = search(rows, values.pad((None, (0, LANES - queries % LANES))), right, order)
        return padded.shrink((None, (0, queries)))
    steps = _search_steps(size)
    parallel = in_parallel(rows)
    tensors = [Tensor.empty(batch, queries, dtype=dtypes.int32, device=rows.device), values, rows]
    shared = rows.shape[0] == 1

    def kernel(out: UOp, values: UOp, rows: UOp, *order: UOp) -> UOp:
        row, (query, shares) = UOp.range(batch, 0), thread_ranges(queries, 1, parallel)
        step = UOp.range(steps, 3, AxisType.LOOP)
        found = UOp.placeholder((1,), dtypes.int32, 0, AddrSpace.REG)
        found = found.after(row, *shares)[0].set(0)
        value = values.flatten()[row * queries + query].load()
        now = found.after(step)[0].load()
        jump = UOp.const(1, dtypes.int32) << (UOp.const(steps - 1, dtypes.int32) - step.cast(dtypes.int32))
        start = UOp.const(0) if shared else row * size
        at = (now + jump - 1).minimum(size - 1).maximum(0).cast(dtypes.weakint)
        if order:
            at = order[0].flatten()[start + at].load().cast(dtypes.int32).maximum(0).minimum(size - 1)
            at = at.cast(dtypes.weakint)
        here = rows.flatten()[start + at].load()
        passed = ((value < here) if right else ((value < here) | here.eq(value))).logical_not()
        now = (passed & (now + jump < size + 1)).where(now + jump, now)
        loop = found[0].store(now).end(step)
        result = found.after(loop)[0].load()
        write = out.flatten()[row * queries + query].store(result).end(row, *shares)
        return write.sink(arg=KernelInfo(name="search", opts_to_apply=()))

    return call(kernel, *tensors, *([order] if order is not None else []))
