"""Functions summed until they converge, element by element: incomplete gamma functions, Hurwitz' zeta; and Airy's."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels.arrays import zeros

from ...kernels.loops import Loops, Value, run_each
from .. import angles
from .. import elementary as e
from .. import maths as m
from ..maths import operands, polynomial, widest_float
from ..pointwise import register_unary
from ..registry import lowers
from ..special import ABOUT_TWO, in_double, lgamma

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


@lowers(aten.special_zeta.default, aten.special_zeta.self_scalar, aten.special_zeta.other_scalar)
def zeta(x, q, *, meta):
    """The sum of (q+k)**-x: terms until the base is above 9, the rest by Euler and Maclaurin's formula."""
    if not math.prod(meta[0].shape):
        return zeros(meta[0].shape, meta[0].tiny)
    x, q = (t.expand(meta[0].shape) for t in operands(widest_float(), x, q))
    whole = m.floor(x).eq(x)
    pole = m.less_equal(q, q.const_like(0)) & m.floor(q).eq(q)
    plain = (x > 1) & ((q > 0) | (whole & ~pole)) & (q > -(2.0**24)) & (q < m.INF) & (x < m.INF)
    power, start = plain.where(x, 2.0).contiguous(), plain.where(q, 1.0).contiguous()
    last = (m.floor(9.0 - start) + 1.0).maximum(9.0).cast(dtypes.int32).contiguous()
    end = start + last.cast(start.dtype)
    term = e.power_size(end, -power)
    total = power_sum(power, start, last) + term * end / (power - 1.0) - 0.5 * term
    rising, scaled = power, term / end
    for k, coefficient in enumerate(EULER_MACLAURIN):
        total = total + rising * scaled * coefficient
        rising = rising * (power + (2.0 * k + 1.0)) * (power + (2.0 * k + 2.0))
        scaled = scaled / (end * end)
    total = plain.where(total, m.NAN)
    total = (x.eq(m.INF) & (q > 1)).where(0.0, (q.eq(m.INF) & (x > 1)).where(0.0, total))
    return x.eq(1).where(m.INF, ((x > 1) & pole).where(m.INF, total))


# Airy's function (Cephes): rational functions of 1/zeta, with zeta = 2/3 |x|**1.5, beyond 2.09 on either side.
AIRY_RIGHT = (
    [3.46538101525629032477e-01, 1.20075952739645805542e01, 7.62796053615234516538e01, 1.68089224934630576269e02,
     1.59756391350164413639e02, 7.05360906840444183113e01, 1.40264691163389668864e01, 9.99999999999999995305e-01],
    [5.67594532638770212846e-01, 1.47562562584847203173e01, 8.45138970141474626562e01, 1.77318088145400459522e02,
     1.64234692871529701831e02, 7.14778400825575695274e01, 1.40959135607834029598e01, 1.00000000000000000470e00],
)  # fmt: skip
AIRY_COSINE = (
    [-1.31696323418331795333e-01, -6.26456544431912369773e-01, -6.93158036036933542233e-01, -2.79779981545119124951e-01,
     -4.91900132609500318020e-02, -4.06265923594885404393e-03, -1.59276496239262096340e-04, -2.77649108155232920844e-06,
     -1.67787698489114633780e-08],
    [1.33560420706553243746e01, 3.26825032795224613948e01, 2.67367040941499554804e01, 9.18707402907259625840e00,
     1.47529146771666414581e00, 1.15687173795188044134e-01, 4.40291641615211203805e-03, 7.54720348287414296618e-05,
     4.51850092970580378464e-07],
)  # fmt: skip
AIRY_SINE = (
    [1.97339932091685679179e-02, 3.91103029615688277255e-01, 1.06579897599595591108e00, 9.39169229816650230044e-01,
     3.51465656105547619242e-01, 6.33888919628925490927e-02, 5.85804113048388458567e-03, 2.82851600836737019778e-04,
     6.98793669997260967291e-06, 8.11789239554389293311e-08, 3.41551784765923618484e-10],
    [9.30892908077441974853e00, 1.98352928718312140417e01, 1.55646628932864612953e01, 5.47686069422975497931e00,
     9.54293611618961883998e-01, 8.64580826352392193095e-02, 4.12656523824222607191e-03, 1.01259085116509135510e-04,
     1.17166733214413521882e-06, 4.91834570062930015649e-09],
)  # fmt: skip
ROOT_PI_INVERSE = 5.64189583547756286948e-01
AIRY_AT_ZERO, AIRY_SLOPE_AT_ZERO = 0.355028053887817239260, 0.258819403792806798405
AIRY_TERMS = 24


def airy_ai(x: Tensor) -> Tensor:
    far = m.absolute(x) > 2.0
    size = far.where(m.absolute(x), 2.0)
    zeta = size * size.sqrt() * 2.0 / 3.0
    inverse, root = zeta.reciprocal(), size.sqrt().sqrt()
    right = polynomial(inverse, AIRY_RIGHT[0]) / polynomial(inverse, AIRY_RIGHT[1])
    right = ROOT_PI_INVERSE * right / (2.0 * root * e.exp(zeta))
    square, angle = inverse * inverse, zeta + 0.25 * math.pi
    cosine = 1.0 + square * polynomial(square, AIRY_COSINE[0]) / polynomial(square, AIRY_COSINE[1])
    sine = inverse * polynomial(square, AIRY_SINE[0]) / polynomial(square, AIRY_SINE[1])
    left = ROOT_PI_INVERSE / root * (angles.sin(angle) * cosine - angles.cos(angle) * sine)
    near = (m.absolute(x) < 2.1).where(x, 0.0)
    cube = near * near * near
    even = odd = 1.0
    for k in range(AIRY_TERMS, 0, -1):
        even = 1.0 + cube * even / ((3.0 * k - 1.0) * 3.0 * k)
        odd = 1.0 + cube * odd / (3.0 * k * (3.0 * k + 1.0))
    middle = AIRY_AT_ZERO * even - AIRY_SLOPE_AT_ZERO * near * odd
    value = (x < -2.09).where(left, (x < 2.09).where(middle, (x > 103.892).where(0.0, right)))
    return (m.absolute(x).eq(m.INF) | x.isnan()).where(m.NAN, value)


register_unary(aten.special_airy_ai.default, in_double(airy_ai))
