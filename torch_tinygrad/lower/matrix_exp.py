"""Exponentials of matrices: Taylor's polynomial of the matrix scaled by a power of two, squared as often.

The polynomial of degree 18 in five products is Bader, Blanes and Casas' ("Computing the Matrix Exponential with an
Optimized Taylor Polynomial Approximation", 2019), which PyTorch uses: results can be as far off as the squarings
amplify rounding, so they only agree where the same is computed."""

from __future__ import annotations

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels.arrays import zeros

from ..kernels.loops import Loops, Value, run
from . import elementary as e
from .factor import batch_of
from .maths import widen
from .registry import lowers

aten = torch.ops.aten

# Sums of I, A, A^2, A^3 and A^6: the exponential is Q1 + (Q2 + S) S with S = Q3 + Q0 Q4.
SUMS = (
    (0.0, -1.00365581030144618291e-01, -8.02924648241156932449e-03, -8.92138498045729985177e-04, 0.0),
    (0.0, 3.97849749499645077844e-01, 1.36783778460411720168e00, 4.98289622525382669416e-01,
     -6.37898194594723280150e-04),
    (-1.09676396052962061844e01, 1.68015813878906206114e00, 5.71779846478865511061e-02, -6.98210122488052056106e-03,
     3.34975017086070470649e-05),
    (-9.04316832390810593223e-02, -6.76404519071381882256e-02, 6.75961301770459654925e-02, 2.95552570429315521194e-02,
     -1.39180257516060693404e-05),
    (0.0, 0.0, -9.23364619367118555360e-02, -1.69364939002081722752e-02, -1.40086798182036094347e-05),
)  # fmt: skip
# The largest norm for which the polynomial is exact to rounding, by the dtype's bytes.
LARGEST_NORM = {4: 3.010066362817634, 8: 1.090863719290036}
MOST_SQUARINGS = 24


@lowers(aten.linalg_matrix_exp.default)
def matrix_exp(a: Tensor) -> Tensor:
    if not a.numel():
        return a
    size, a = a.shape[-1], a.cast(widen(a.dtype))
    norm = (a < 0).where(-a, a).sum(-2).max(-1, keepdim=True).unsqueeze(-1)
    needed = [norm > LARGEST_NORM[a.dtype.itemsize] * 2.0**i for i in range(MOST_SQUARINGS)]
    squarings = sum((n.cast(dtypes.int32) for n in needed[1:]), needed[0].cast(dtypes.int32)).contiguous()
    scaled = a * e.exp2(-squarings.cast(a.dtype))

    def body(k: Loops, result: Value, product: Value, left: Value, right: Value, *given: Value) -> None:
        second, third, sixth, first, squarings = given
        start = k.problem * (size * size)

        def rounded(value: Value) -> Value:
            """In a place of its own: compilers fuse a product and a sum, which rounds once."""
            return k.value(k.variable(value, value.dtype))

        def multiply(target: Value, a: Value, b: Value) -> None:
            with k.share_grid(size, size) as (row, column):
                total = k.variable(0, target.dtype)
                with k.loop(size) as at:
                    left, right = k.load(a, start + row * size + at), k.load(b, start + at * size + column)
                    k.set(total, k.value(total) + rounded(left * right))
                k.store((target, start + row * size + column, k.value(total)))
            k.sync()

        def add(target: Value, number: int, other: Value | None = None) -> None:
            """One of the sums, and another matrix."""
            with k.share_grid(size, size) as (row, column):
                place = start + row * size + column
                total = row.eq(column).where(Value.const(SUMS[number][0], target.dtype), Value.const(0.0, target.dtype))
                for coefficient, power in zip(SUMS[number][1:], (first, second, third, sixth), strict=True):
                    total = total + rounded(k.load(power, place) * coefficient)
                k.store((target, place, total if other is None else total + k.load(other, place)))
            k.sync()

        multiply(second, first, first)
        multiply(third, first, second)
        multiply(sixth, third, third)
        add(left, 0)
        add(right, 4)
        multiply(product, left, right)
        add(right, 3, product)
        add(left, 2, right)
        multiply(product, left, right)
        add(result, 1, product)
        count = k.load(squarings, k.problem)
        with k.loop(MOST_SQUARINGS) as turn:
            multiply(product, result, result)
            with k.share_grid(size, size) as (row, column):
                place = start + row * size + column
                squared = turn.cast(dtypes.int32) < count
                k.store((result, place, squared.where(k.load(product, place), k.load(result, place))))
            k.sync()

    nothing = zeros(tuple(a.shape), a.dtype)
    return run("matrix_exp", body, batch_of(a), size * size, [nothing] * 7, scaled, squarings)[0]
