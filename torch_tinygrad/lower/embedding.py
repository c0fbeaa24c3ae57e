"""Embedding tables: rows out by position, gradients back into rows by a kernel of our own (`accumulate_rows`)."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes
from tinygrad.uop.ops import AxisType, KernelInfo, UOp

from ..kernels.threads import call, in_parallel
from .matmul import accumulator
from .registry import lowers
from .taps import take

aten = torch.ops.aten
ROW_BLOCKS = 64


def serial_rows(out: UOp, grad: UOp, index: UOp) -> UOp:
    """One thread: clear the table, then add the gradients row by row."""
    rows, width = out.shape
    cleared, column = UOp.range(rows, 0), UOp.range(width, 1)
    table = out.after(out[cleared, column].store(0).end(cleared, column))
    i, j = UOp.range(index.shape[0], 2), UOp.range(width, 3)
    row = index[i].cast(dtypes.weakint)
    cell = row.valid((row >= 0) & (row < rows))
    sums = table.after(i).index(cell, j).load() + grad[i, j].load()
    return table.index(cell, j).store(sums).end(i, j).sink(arg=KernelInfo(name="rows_added", opts_to_apply=()))


def thread_count(width: int) -> int:
    """A divisor of the width to make blocks of: no thread is left over."""
    divisors = [n for n in range(1, min(width, 1024) + 1) if width % n == 0]
    return max((n for n in divisors if n <= 256), default=1) if any(32 <= n <= 256 for n in divisors) else divisors[-1]


def parallel_rows(out: UOp, grad: UOp, index: UOp) -> UOp:
    """A thread owns one column of a block of rows: it clears that and walks all gradients in order, adding those whose
    row is its own. No two threads write the same cell, so there is nothing to synchronise and sums are reproducible."""
    rows, width = out.shape
    threads, blocks = thread_count(width), min(ROW_BLOCKS, rows)
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


def accumulate_rows(grad: Tensor, index: Tensor, rows: int) -> Tensor:
    """[rows, width] with grad[i] added to row index[i], in grad's dtype; rows that do not exist are skipped."""
    if not math.prod(grad.shape) or not rows:
        return Tensor.zeros(rows, grad.shape[1], dtype=grad.dtype)
    kernel = parallel_rows if in_parallel(grad) else serial_rows
    table = Tensor.empty(rows, grad.shape[1], dtype=grad.dtype, device=grad.device)
    return call(kernel, table, grad, index.cast(dtypes.int32))


@lowers(aten.embedding.default)
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
