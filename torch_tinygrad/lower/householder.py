"""Products of reflections: QR factorisation with LAPACK's signs, and what is made from it."""

from __future__ import annotations

import torch
from tinygrad import Tensor

from torch_tinygrad.kernels.arrays import positions, zeros

from ..kernels.loops import Loops, Value, run
from .factor import batch_of, lower_triangle
from .registry import lowers
from .solve import joint_batch, transposed

aten = torch.ops.aten


def reflections(a: Tensor) -> tuple[Tensor, Tensor]:
    """R on and above the diagonal, the reflections' vectors below it (without their leading 1), and their factors."""
    rows, columns = a.shape[-2:]
    steps, batch = min(rows, columns), batch_of(a)
    factors = zeros((*a.shape[:-2], steps), a.dtype)
    if 0 in (steps, batch):
        return a, factors

    def body(k: Loops, a: Value, factors: Value) -> None:
        start = k.problem * (rows * columns)
        with k.loop(steps) as step:
            line = start + step * columns
            squares = k.variable(0, a.dtype)
            with k.loop(rows) as row:
                with k.when(step < row):
                    below = k.load(a, start + row * columns + step)
                k.set(squares, k.value(squares) + below * below)
            head, rest = k.load(a, line + step), k.value(squares)
            size = (head * head + rest).sqrt()
            flat = rest.eq(0)
            new = flat.where(head, (head < 0).where(size, -size))
            factor = flat.where(0, (new - head) / flat.where(1, new))
            shrink = flat.where(1, head - new)
            k.sync()
            k.store((factors, k.problem * steps + step, factor))
            with k.share(rows) as row, k.when(step <= row):
                place = start + row * columns + step
                k.store((a, place, row.eq(step).where(new, k.load(a, place) / shrink)))
            k.sync()
            with k.share(columns) as column, k.when(step < column):
                _reflect(k, a, start, step, columns, rows, a, start, column, columns, factor)
            k.sync()

    vectors, factors = run("reflections", body, batch, columns, [a, factors])
    return vectors, factors


def _reflect(k: Loops, vectors: Value, first, step, width, rows, target: Value, start, column, columns, factor) -> None:
    """One column of the target, reflected by the `step`-th vector."""
    top = start + step * columns + column
    dot = k.variable(k.load(target, top), target.dtype)
    with k.loop(rows) as row:
        with k.when(step < row):
            part = k.load(vectors, first + row * width + step) * k.load(target, start + row * columns + column)
        k.set(dot, k.value(dot) + part)
    by = k.value(dot) * factor
    k.store((target, top, k.load(target, top) - by))
    with k.loop(rows) as row, k.when(step < row):
        place = start + row * columns + column
        k.store((target, place, k.load(target, place) - k.load(vectors, first + row * width + step) * by))


def reflected(vectors: Tensor, factors: Tensor, target: Tensor, transpose: bool) -> Tensor:
    """Q or its transpose times the target, for the Q that is the product of all reflections."""
    vectors, target = joint_batch(vectors, target)
    (rows, width), columns, steps = vectors.shape[-2:], target.shape[-1], factors.shape[-1]
    factors = factors.expand(*target.shape[:-2], steps)
    batch = batch_of(target)
    if 0 in (rows, columns, steps, batch):
        return target

    def body(k: Loops, target: Value, vectors: Value, factors: Value) -> None:
        with k.share(columns) as column, k.loop(steps) as turn:
            step = turn if transpose else steps - 1 - turn
            first, start = k.problem * (rows * width), k.problem * (rows * columns)
            factor = k.load(factors, k.problem * steps + step)
            _reflect(k, vectors, first, step, width, rows, target, start, column, columns, factor)

    return run("reflected", body, batch, columns, [target], vectors, factors)[0]


def identity(rows: int, columns: int, like: Tensor) -> Tensor:
    unit = (positions(rows, 0, 2) == positions(columns, 1, 2)).cast(like.dtype)
    return unit.expand(*like.shape[:-2], rows, columns)


@lowers(aten.geqrf.default)
def geqrf(a):
    return reflections(a)


@lowers(aten.linalg_householder_product.default)
def householder_product(vectors, factors):
    return reflected(vectors, factors, identity(*vectors.shape[-2:], vectors), transpose=False)


@lowers(aten.ormqr.default)
def ormqr(vectors, factors, target, left=True, transpose=False):
    if left:
        return reflected(vectors, factors, target, transpose)
    return transposed(reflected(vectors, factors, transposed(target), not transpose))


@lowers(aten.linalg_qr.default)
def linalg_qr(a, mode="reduced"):
    rows, columns = a.shape[-2:]
    vectors, factors = reflections(a)
    kept = rows if mode == "complete" else min(rows, columns)
    upper = vectors - lower_triangle(vectors, -1)
    upper = upper.shrink((*((0, s) for s in a.shape[:-2]), (0, kept), (0, columns)))
    q = None if mode == "r" else reflected(vectors, factors, identity(rows, kept, a), transpose=False)
    return q, upper
