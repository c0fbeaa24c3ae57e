"""Rows added up by index, each sum in the order of its rows."""

from __future__ import annotations

import math

from tinygrad import Tensor, dtypes
from tinygrad.uop.ops import AxisType, KernelInfo, UOp

from .threads import call, in_parallel

ROW_BLOCKS = 64


def accumulate_rows(grad: Tensor, index: Tensor, rows: int) -> Tensor:
    """[rows, width] with grad[i] added to row index[i], in grad's dtype; rows that do not exist are skipped."""
    if not math.prod(grad.shape) or not rows:
        return Tensor.zeros(rows, grad.shape[1], dtype=grad.dtype)
    if index.shape[0] == 1:  # nothing to add up; and tinygrad loses the conditions of a loop with one step
        return (Tensor.arange(rows).reshape(rows, 1) == index.cast(dtypes.int32)).where(grad, 0).cast(grad.dtype)
    kernel = _parallel if in_parallel(grad) else _serial
    table = Tensor.empty(rows, grad.shape[1], dtype=grad.dtype, device=grad.device)
    return call(kernel, table, grad, index.cast(dtypes.int32))


def _serial(out: UOp, grad: UOp, index: UOp) -> UOp:
    """One thread: clear the table, then add the gradients row by row."""
    rows, width = out.shape
    cleared, column = UOp.range(rows, 0), UOp.range(width, 1)
    table = out.after(out[cleared, column].store(0).end(cleared, column))
    i, j = UOp.range(index.shape[0], 2), UOp.range(width, 3)
    row = index[i].cast(dtypes.weakint)
    cell = row.valid((row >= 0) & (row < rows))
    sums = table.after(i).index(cell, j).load() + grad[i, j].load()
    return table.index(cell, j).store(sums).end(i, j).sink(arg=KernelInfo(name="rows_added", opts_to_apply=()))


def _parallel(out: UOp, grad: UOp, index: UOp) -> UOp:
    """A thread owns one column of a block of rows: it clears that and walks all gradients in order, adding those whose
    row is its own. No two threads write the same cell, so there is nothing to synchronise and sums are reproducible."""
    rows, width = out.shape
    threads, blocks = _thread_count(width), min(ROW_BLOCKS, rows)
    span = -(-rows // blocks)
    block = UOp.range(blocks, 0, AxisType.GLOBAL)
    outer, inner = UOp.range(width // threads, 1, AxisType.GLOBAL), UOp.range(threads, 2, AxisType.LOCAL)
    column = outer * threads + inner
    offset, i = UOp.range(span, 3, AxisType.LOOP), UOp.range(index.shape[0], 4, AxisType.LOOP)
    cleared = block * span + offset
    table = out.after(out.index(cleared.valid(cleared < rows), column).store(0).end(offset))
    row = index[i].cast(dtypes.weakint)
    cell = row.valid((row >= block * span) & (row < (block + 1) * span) & (row < rows))
    sums = table.after(i).index(cell, column).load() + grad.index(i, column).load()
    stored = table.index(cell, column).store(sums)
    return stored.end(i, block, outer, inner).sink(arg=KernelInfo(name="rows_added", opts_to_apply=()))


def _thread_count(width: int) -> int:
    """A divisor of the width to make blocks of: no thread is left over."""
    divisors = [n for n in range(1, min(width, 1024) + 1) if width % n == 0]
    return max((n for n in divisors if n <= 256), default=1) if any(32 <= n <= 256 for n in divisors) else divisors[-1]
