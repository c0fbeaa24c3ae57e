"""Functions summed until they converge, element by element: incomplete gamma functions, Hurwitz' zeta."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels.arrays import zeros

from ...kernels.loops import Loops, Value, run_each
from .. import elementary as e
from .. import maths as m
from ..gammas import lgamma
from ..maths import operands, polynomial, widest_float
from ..pairs import single
from ..registry import lowers

aten = torch.ops.aten
MOST_TERMS = 2000
EPSILON = {dtypes.float32: 2.0**-24, dtypes.float64: 2.0**-53}


def magnitude(x: Value) -> Value:
    return (x < 0).where(-x, x)


def series(a: Tensor, x: Tensor) -> Tensor:
    """1 + x/(a+1) + x^2/((a+1)(a+2)) + ..."""

    def body(k: Loops, out: Value, a: Value, x: Value) -> None:
        start, point = k.load(a, k.problem), k.load(x, k.problem)
        term, total = k.variable(1.0, out.dtype), k.variable(1.0, out.dtype)
        done = k.variable(0, dtypes.int32)

        def goes_on() -> Value:
            return (k.value(total) * EPSILON[out.dtype] < k.value(term)) & (k.value(done) < MOST_TERMS)

        with k.repeat(goes_on):
            turn = k.value(done) + 1
            k.set(term, k.value(term) * point / (start + turn.cast(out.dtype)))
            k.set(total, k.value(total) + k.value(term))
            k.set(done, turn)
        k.store((out, k.problem, k.value(total)))

    return run_each("gamma_series", body, zeros(tuple(a.shape), a.dtype), a, x)


def fraction(a: Tensor, x: Tensor) -> Tensor:
    """The continued fraction 1/(x+1-a- 1(1-a)/(x+3-a- 2(2-a)/(x+5-a- ...))), by Lentz' method."""
    tiny = 1e-30

    def body(k: Loops, out: Value, a: Value, x: Value) -> None:
        start, point = k.load(a, k.problem), k.load(x, k.problem)
        first = point + 1.0 - start
        above, below = k.variable(1.0 / tiny, out.dtype), k.variable(1.0 / first, out.dtype)
        total, change = k.variable(1.0 / first, out.dtype), k.variable(0.0, out.dtype)
        done = k.variable(0, dtypes.int32)

        def goes_on() -> Value:
            return (magnitude(k.value(change) - 1.0) > EPSILON[out.dtype]) & (k.value(done) < MOST_TERMS)

        def apart(value: Value) -> Value:
            return (magnitude(value) < tiny).where(tiny, value)

        with k.repeat(goes_on):
            turn = k.value(done) + 1
            count = turn.cast(out.dtype)
            numerator, denominator = count * (start - count), first + count * 2.0
            k.set(below, 1.0 / apart(numerator * k.value(below) + denominator))
            k.set(above, apart(denominator + numerator / k.value(above)))
            k.set(change, k.value(below) * k.value(above))
            k.set(total, k.value(total) * k.value(change))
            k.set(done, turn)
        k.store((out, k.problem, k.value(total)))

    return run_each("gamma_fraction", body, zeros(tuple(a.shape), a.dtype), a, x)


# What is left after these terms for x up to UPPER_SERIES_ENDS is below a double's last digit.
UPPER_SERIES_ENDS, UPPER_TERMS = 1.1, 22


# lgamma(2 + z) = z * P(z) for |z| <= 1/2: Taylor's series, whose coefficients are values of the zeta function.
EULER = 0.57721566490153286061
ABOUT_TWO = [
    *(
        (-1) ** k / k * torch.special.zeta(torch.tensor(float(k), dtype=torch.float64), 2.0).item()
        for k in range(28, 1, -1)
    ),
    1.0 - EULER,
]


def log_gamma_of_next(a: Tensor) -> Tensor:
    """lgamma(1 + a), to all digits of small a, too."""
    small = a < 0.5
    near = small.where(a, 0.0)
    return small.where(near * polynomial(near, ABOUT_TWO) - e.log1p(near), lgamma(1.0 + a))


def upper_series(a: Tensor, x: Tensor) -> Tensor:
    """From x on, where nearly all lies before it: 1 - x**a / gamma(1 + a), and the series of the rest."""
    exponent = a * e.log(x) - log_gamma_of_next(a)
    total, factor = None, 1.0
    for n in range(1, UPPER_TERMS + 1):
        factor = factor * (-x / n)
        term = factor / (a + n)
        total = term if total is None else total + term
    return -e.expm1(exponent) - a * e.exp(exponent) * total


def incomplete_gamma(a: Tensor, x: Tensor, upper: bool) -> Tensor:
    """The regularised function from 0 to x, or from x on."""
    plain = (a > 0) & (x > 0) & (a < m.INF) & (x < m.INF)
    inner, point = (plain.where(t, 1.0).contiguous() for t in (a, x))
    near = point < inner + 1.0
    log_factor = inner * e.log(point) - point - lgamma(inner)
    factor = e.exp(log_factor)
    low = factor / inner * series(inner, near.where(point, 0.0).contiguous())
    high = factor * fraction(near.where(1.0, inner).contiguous(), near.where(2.0, point).contiguous())
    if upper:
        short = (point <= UPPER_SERIES_ENDS).where(point, 1.0)
        least = (short <= 0.5).where(-0.4 / e.log((short <= 0.5).where(short, 0.5)), 1.1 * short)
        is_short = (point <= UPPER_SERIES_ENDS) & (inner <= least)
        value = is_short.where(upper_series(is_short.where(inner, 1.0), short), near.where(1.0 - low, high))
    else:
        value = near.where(low, 1.0 - high)
    zero, one = (1.0, 0.0) if upper else (0.0, 1.0)
    value = x.eq(0).where(zero, x.eq(m.INF).where(one, value))
    value = a.eq(m.INF).where(x.eq(m.INF).where(m.NAN, zero), value)
    value = a.eq(0).where((x > 0).where(one, m.NAN), value)
    return ((a < 0) | (x < 0) | a.isnan() | x.isnan()).where(m.NAN, value)


def _register_gamma(overload, upper: bool) -> None:
    @lowers(overload)
    def compute(a, x, *, meta):
        if not math.prod(meta[0].shape):
            return zeros(meta[0].shape, meta[0].tiny)
        a, x = (t.expand(meta[0].shape) for t in operands(widest_float(), a, x))
        return incomplete_gamma(a, x, upper)


_register_gamma(aten.igamma.default, upper=False)
_register_gamma(aten.igammac.default, upper=True)


# B_2k / (2k)! for the terms of Euler and Maclaurin's sum.
EULER_MACLAURIN = [
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600,
    -3617 / 10670622842880000, 43867 / 5109094217170944000, -174611 / 802857662698291200000,
]  # fmt: skip


def power_sum(exponent: Tensor, q: Tensor, last: Tensor) -> Tensor:
    """The sum of (q+k)**-exponent for k from 0 to `last`. Negative bases take whole exponents."""

    def body(k: Loops, out: Value, exponent: Value, q: Value, last: Value) -> None:
        power, start, end = (k.load(t, k.problem) for t in (exponent, q, last))
        is_odd = (power * 0.5).trunc().ne(power * 0.5)
        total, done = k.variable(0.0, out.dtype), k.variable(0, dtypes.int32)
        with k.repeat(lambda: k.value(done) <= end):
            base = start + k.value(done).cast(out.dtype)
            size = (magnitude(base).log2() * -power).exp2()
            k.set(total, k.value(total) + ((base < 0) & is_odd).where(-size, size))
            k.set(done, k.value(done) + 1)
        k.store((out, k.problem, k.value(total)))

    return run_each("power_sum", body, zeros(tuple(q.shape), q.dtype), exponent, q, last)


PLAIN_TERMS = 9


@lowers(aten.special_zeta.default, aten.special_zeta.self_scalar, aten.special_zeta.other_scalar)
def zeta(x, q, *, meta):
    """The sum of (q+k)**-x: terms until the base is above 9, the rest by Euler and Maclaurin's formula."""
    if not math.prod(meta[0].shape):
        return zeros(meta[0].shape, meta[0].tiny)
    x, q = (t.expand(meta[0].shape) for t in operands(widest_float(), x, q))
    whole = m.floor(x).eq(x)
    pole = m.less_equal(q, q.const_like(0)) & m.floor(q).eq(q)
    plain = (x > 1) & ((q > 0) | (whole & ~pole)) & (q > -(2.0**24)) & (q < m.INF) & (x < m.INF)
    power, shift = plain.where(x, 2.0), plain.where(q, 1.0)
    # bases below zero one by one, then some above it, each with all digits
    below = (shift < 0).where(-m.floor(shift), 0.0)
    start = (shift < 0).where(shift - m.floor(shift), shift)
    last = (below - 1.0).maximum(0.0).cast(dtypes.int32)
    negative = (shift < 0).where(power_sum(*(t.contiguous() for t in (power, shift, last))), 0.0)
    terms = [e.power_size(start + float(k), -power) for k in range(PLAIN_TERMS + 1)]
    term, end = terms[-1], start + float(PLAIN_TERMS)
    total = single(term * (end / (power - 1.0) - 0.5)) + single(term)
    for following in terms[-2::-1]:
        total = total + single(following)
    total = total.rounded + negative
    rising, scaled = power, term / end
    for k, coefficient in enumerate(EULER_MACLAURIN):
        total = total + rising * scaled * coefficient
        rising = rising * (power + (2.0 * k + 1.0)) * (power + (2.0 * k + 2.0))
        scaled = scaled / (end * end)
    total = plain.where(total, m.NAN)
    total = (x.eq(m.INF) & (q > 1)).where(0.0, (q.eq(m.INF) & (x > 1)).where(0.0, total))
    return x.eq(1).where(m.INF, ((x > 1) & pole).where(m.INF, total))
