"""Linear systems from their factors: substitution in triangles, and solutions from LU and Cholesky factors."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels.arrays import positions

from ..kernels.loops import Loops, Value, as_index, run
from .factor import batch_of, lower_triangle
from .gather import gather
from .registry import Meta, lowers

aten = torch.ops.aten


def joint_batch(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two batches of matrices, expanded to the same batch."""
    lead = torch.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    return a.expand(*lead, *a.shape[-2:]), b.expand(*lead, *b.shape[-2:])


def transposed(x: Tensor) -> Tensor:
    return x.transpose(-1, -2)


def solve_lower(a: Tensor, b: Tensor, unit: bool) -> Tensor:
    """X with A X = B, for the lower triangle of A."""
    size, columns, batch = a.shape[-1], b.shape[-1], batch_of(b)
    if 0 in (size, columns, batch) or (unit and size == 1):
        return b

    def body(k: Loops, x: Value, a: Value) -> None:
        matrix, start = k.problem * (size * size), k.problem * (size * columns)
        with k.loop(size) as step:
            line = start + step * columns
            if not unit:
                head = k.load(a, matrix + step * (size + 1))
                with k.share(columns) as column:
                    k.store((x, line + column, k.load(x, line + column) / head))
                k.sync()
            with k.share_grid(size, columns) as (row, column), k.when(step < row):
                place = start + row * columns + column
                product = k.load(a, matrix + row * size + step) * k.load(x, line + column)
                k.store((x, place, k.load(x, place) - product))
            k.sync()

    return run("solve_lower", body, batch, size * columns, [b], a)[0]


def solve_triangular(a: Tensor, b: Tensor, upper: bool, unit: bool) -> Tensor:
    """X with A X = B, for one triangle of A: the upper one is the lower one backwards."""
    a, b = joint_batch(a, b)
    if not upper:
        return solve_lower(a, b, unit)
    return solve_lower(a.flip(-1, -2), b.flip(-2), unit).flip(-2)


@lowers(aten.linalg_solve_triangular.default)
def linalg_solve_triangular(a, b, *, upper, left=True, unitriangular=False):
    if left:
        return solve_triangular(a, b, upper, unitriangular)
    return transposed(solve_triangular(transposed(a), transposed(b), not upper, unitriangular))


@lowers(aten.triangular_solve.default)
def triangular_solve(b, a, upper=True, transpose=False, unitriangular=False):
    a, b = joint_batch(a, b)
    if transpose:
        return solve_triangular(transposed(a), b, not upper, unitriangular), a
    return solve_triangular(a, b, upper, unitriangular), a


def row_order(pivots: Tensor, size: int) -> Tensor:
    """Which row of a matrix comes where, after all swaps."""
    steps, batch, lead = pivots.shape[-1], math.prod(pivots.shape[:-1]), tuple(pivots.shape[:-1])
    start = positions(size).expand(*lead, size)
    if 0 in (steps, batch, size):
        return start

    def body(k: Loops, order: Value, pivots: Value) -> None:
        first = k.problem * size
        with k.loop(steps) as step:
            other = first + as_index(k.load(pivots, k.problem * steps + step) - 1, size)
            mine, swapped = k.load(order, first + step), k.load(order, other)
            k.store((order, first + step, swapped), (order, other, mine))

    return run("row_order", body, batch, 1, [start], pivots)[0]


def take(x: Tensor, order: Tensor) -> Tensor:
    """The rows of matrices in an order."""
    if not x.numel():
        return x
    index = order.unsqueeze(-1).expand(*x.shape)
    return gather(x, x.ndim - 2, index, meta=(Meta(tuple(x.shape), torch.int64),))


def permutation(order: Tensor, dtype) -> Tensor:
    """The matrix P with A = P L U."""
    size, ndim = order.shape[-1], order.ndim + 1
    return (order.unsqueeze(-2) == positions(size, ndim - 2, ndim)).cast(dtype)


def inverse_order(order: Tensor) -> Tensor:
    size, ndim = order.shape[-1], order.ndim + 1
    here = order.unsqueeze(-2) == positions(size, ndim - 2, ndim)
    return here.where(positions(size, ndim - 1, ndim), 0).sum(-1, dtype=dtypes.int32)


@lowers(aten.linalg_lu_solve.default)
def linalg_lu_solve(lu, pivots, b, *, left=True, adjoint=False):
    if not left:
        return transposed(linalg_lu_solve(lu, pivots, transposed(b), adjoint=not adjoint))
    size = lu.shape[-1]
    lu, b = joint_batch(lu, b)
    order = row_order(pivots, size)
    order = order.expand(*b.shape[:-2], size)
    if adjoint:
        x = solve_triangular(transposed(lu), b, upper=False, unit=False)
        x = solve_triangular(transposed(lu), x, upper=True, unit=True)
        return take(x, inverse_order(order))
    x = solve_triangular(lu, take(b, order), upper=False, unit=True)
    return solve_triangular(lu, x, upper=True, unit=False)


@lowers(aten.lu_unpack.default)
def lu_unpack(lu, pivots, unpack_data=True, unpack_pivots=True, *, meta):
    rows, columns = lu.shape[-2:]
    steps = min(rows, columns)
    pivots = pivots.shrink((*((0, s) for s in pivots.shape[:-1]), (0, min(steps, pivots.shape[-1]))))
    p = permutation(row_order(pivots, rows), meta[0].tiny) if unpack_pivots else None
    if not unpack_data:
        return p, None, None
    lead = tuple((0, s) for s in lu.shape[:-2])
    lower = lower_triangle(lu, -1).shrink((*lead, (0, rows), (0, steps)))
    diagonal = positions(rows, 0, 2) == positions(steps, 1, 2)
    upper = (lu - lower_triangle(lu, -1)).shrink((*lead, (0, steps), (0, columns)))
    return p, diagonal.where(1, lower), upper


@lowers(aten._cholesky_solve_helper.default)
def cholesky_solve(b, factor, upper):
    lower = transposed(factor) if upper else factor
    return solve_triangular(transposed(lower), solve_triangular(lower, b, False, False), True, False)


@lowers(aten.cholesky_inverse.default)
def cholesky_inverse(factor, upper=False):
    size = factor.shape[-1]
    identity = (positions(size, 0, 2) == positions(size, 1, 2)).cast(factor.dtype).expand(*factor.shape)
    return cholesky_solve(identity, factor, upper)
