"""Factorisations of matrices, each one kernel over the batch: LU with partial pivoting, Cholesky."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels.arrays import positions, zeros

from ..kernels.loops import Loops, Value, as_index, as_int, run
from .registry import lowers

aten = torch.ops.aten
NEVER = 2**31 - 1


def size_of(x: Value) -> Value:
    return (x < 0).where(-x, x)


def batch_of(x: Tensor) -> int:
    return math.prod(x.shape[:-2])


def lu(a: Tensor, pivot: bool) -> tuple[Tensor, Tensor, Tensor]:
    """L below the diagonal and U above in one matrix, the row (from 1) that each was swapped with, and the first
    column (from 1) whose pivot is 0."""
    rows, columns = a.shape[-2:]
    steps, batch = min(rows, columns), batch_of(a)
    lead = tuple(a.shape[:-2])
    if not batch or not steps:
        return a, zeros((*lead, steps), dtypes.int32), zeros(lead, dtypes.int32)
    outs = [a, zeros((*lead, steps), dtypes.int32), zeros(lead, dtypes.int32)]

    def body(k: Loops, a: Value, pivots: Value, info: Value) -> None:
        start = k.problem * (rows * columns)
        failed = k.variable(NEVER, dtypes.int32)
        with k.loop(steps) as step:
            line = start + step * columns
            best = k.variable(size_of(k.load(a, line + step)), a.dtype)
            row = k.variable(as_int(step), dtypes.int32)
            if pivot:
                with k.loop(rows) as other:
                    size = size_of(k.load(a, start + other * columns + step))
                    k.set(best, k.value(best).maximum((step < other).where(size, 0)))
                k.set(row, NEVER)
                with k.loop(rows) as other:
                    found = size_of(k.load(a, start + other * columns + step)).eq(k.value(best)) & (step <= other)
                    k.set(row, k.value(row).minimum(found.where(as_int(other), NEVER)))
            found = as_index(k.value(row), rows)
            k.store((pivots, k.problem * steps + step, as_int(found) + 1))
            k.set(failed, k.value(failed).minimum(k.value(best).eq(0).where(as_int(step) + 1, NEVER)))
            k.sync()
            if pivot:
                swapped = start + found * columns
                with k.share(columns) as column:
                    mine, other = k.load(a, line + column), k.load(a, swapped + column)
                    k.store((a, line + column, other), (a, swapped + column, mine))
                k.sync()
            head = k.load(a, line + step)
            with k.share(rows) as row, k.when(step < row):
                place = start + row * columns + step
                value = k.load(a, place)
                k.store((a, place, head.ne(0).where(value / head, value)))
            k.sync()
            with k.share_grid(rows, columns) as (row, column), k.when((step < row) & (step < column)):
                place = start + row * columns + column
                factor = k.load(a, start + row * columns + step)
                k.store((a, place, k.load(a, place) - factor * k.load(a, line + column)))
            k.sync()
        first = k.value(failed)
        k.store((info, k.problem, first.eq(NEVER).where(0, first)))

    return tuple(run("lu", body, batch, rows * columns, outs))


@lowers(aten.linalg_lu_factor_ex.default)
def linalg_lu_factor_ex(a, *, pivot=True, check_errors=False):
    return lu(a, pivot)


def lower_triangle(x: Tensor, diagonal: int = 0) -> Tensor:
    """`x` with zeros above a diagonal."""
    rows, columns = x.shape[-2:]
    below = positions(columns, 1, 2) <= positions(rows, 0, 2) + diagonal
    return below.where(x, 0)


def cholesky(a: Tensor) -> tuple[Tensor, Tensor]:
    """The lower factor of a matrix given by its lower triangle, and the first leading minor (from 1) that is not
    positive."""
    size, batch, lead = a.shape[-1], batch_of(a), tuple(a.shape[:-2])
    if not batch or not size:
        return a, zeros(lead, dtypes.int32)

    def body(k: Loops, a: Value, info: Value) -> None:
        start = k.problem * (size * size)
        failed = k.variable(NEVER, dtypes.int32)
        with k.loop(size) as step:
            head = k.load(a, start + step * (size + 1))
            k.set(failed, k.value(failed).minimum((head > 0).where(NEVER, as_int(step) + 1)))
            k.sync()
            root = (head > 0).where(head, math.nan).sqrt()
            with k.share(size) as row, k.when(step <= row):
                place = start + row * size + step
                k.store((a, place, row.eq(step).where(root, k.load(a, place) / root)))
            k.sync()
            with k.share_grid(size, size) as (row, column), k.when((step < column) & (column <= row)):
                place = start + row * size + column
                product = k.load(a, start + row * size + step) * k.load(a, start + column * size + step)
                k.store((a, place, k.load(a, place) - product))
            k.sync()
        first = k.value(failed)
        k.store((info, k.problem, first.eq(NEVER).where(0, first)))

    factor, info = run("cholesky", body, batch, size * size, [a, zeros(lead, dtypes.int32)])
    return lower_triangle(factor), info


@lowers(aten.linalg_cholesky_ex.default)
def linalg_cholesky_ex(a, *, upper=False, check_errors=False):
    factor, info = cholesky(a.transpose(-1, -2) if upper else a)
    return factor.transpose(-1, -2) if upper else factor, info
