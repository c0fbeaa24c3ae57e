"""The logarithm of the gamma function and its derivatives: polynomials near their zeros, Stirling's series further out,
in pairs of floats where terms take each other away."""

from __future__ import annotations

import functools
import math

import torch
from tinygrad import Tensor

from . import angles
from . import elementary as e
from . import maths as m
from .fits import evaluated, exactly, fitted, number
from .maths import constant, operand, polynomial, widen
from .pairs import Pair
from .pointwise import register_unary
from .registry import lowers
from .special import in_kind

aten = torch.ops.aten

# From here on Stirling's series.
FAR = 3.0


def within_one(t: Tensor) -> Tensor:
    """t where it is in [-1, 1], else a number that is."""
    return (m.absolute(t) <= 1.0).where(t, 0.0)


# ---- log(gamma) ----------------------------------------------------------------------------------------------------


def _without_zeros(mp, x):
    """lgamma(x) / ((x - 1) * (x - 2))"""
    return mp.loggamma(x) / ((x - 1) * (x - 2))


def _stirling(mp, z):
    """What Stirling's formula leaves of lgamma(x), times x, for z = 1 / (x*x)."""
    x = 1 / mp.sqrt(z)
    return (mp.loggamma(x) - ((x - 0.5) * mp.log(x) - x + mp.log(2 * mp.pi) / 2)) * x


def half_log_of_turn(mp):
    return mp.log(2 * mp.pi) / 2


# From here on x * log(x) has no use for more digits.
HUGE = 1e17


def lgamma_positive(x: Tensor, kind: type[Pair]) -> Pair:
    """For finite x > 0. Below 3/4 it is that of x + 1, less a logarithm."""
    small, far = x < 0.75, m.greater_equal(x, constant(FAR, x.dtype))
    near = far.where(1.0, x)
    logarithm = e.log_pair(x, kind)
    one = constant(1.0, x.dtype)
    # both arguments are exact, from x itself
    low = within_one((small.where(near, near - one)) * 2.0)
    high = within_one(small.where(near - 1.5, near - 2.5))
    shape = evaluated(low, fitted(_without_zeros, 0.5, 1.5), kind)
    shape = shape.where(near < small.where(0.5, 1.5), evaluated(high, fitted(_without_zeros, 1.5, 3.5), kind))
    above_one = small.where(near, near - one)
    value = kind.sum(above_one, -one).times(above_one) * shape
    value = (value - logarithm).where(small, value)
    bounded = (far & (x < HUGE)).where(x, FAR)
    inverse = bounded.reciprocal()
    rest = evaluated(2.0 * FAR * FAR * inverse * inverse - 1.0, fitted(_stirling, 0.0, 1 / FAR**2), kind, 1)
    stirling = logarithm * kind.sum(bounded, constant(-0.5, x.dtype)) - kind.single(bounded)
    stirling = stirling + number(exactly(half_log_of_turn), x.dtype, kind) + kind.single(rest.high * inverse)
    huge = kind.single(x * (logarithm.high - 1.0))
    return huge.where(x > HUGE, stirling.where(far, value))


def pi(mp):
    return mp.pi


def log_of_pi(mp):
    return mp.log(mp.pi)


@in_kind
def lgamma(x: Tensor, kind: type[Pair]) -> Tensor:
    """Of negative numbers by reflection: near the zeros between their poles pairs keep some digits."""
    size = m.absolute(x)
    plain = (size > 0) & (size < m.INF)
    size = plain.where(size, 1.0)
    value = lgamma_positive(size, kind)
    turning = angles.sine_of_turns(size)
    whole = turning.high.eq(0)
    reflected = number(exactly(log_of_pi), x.dtype, kind) - e.log_pair(size, kind) - value
    sine = whole.where(1.0, turning.high)
    reflected = reflected - e.log_pair(sine, kind) - kind.single(turning.low / sine)
    negative = whole.where(m.INF, reflected.rounded)
    return plain.where((x < 0).where(negative, value.rounded), x.isnan().where(x, m.INF))


# ---- digamma -------------------------------------------------------------------------------------------------------


@functools.cache
def zero_of_digamma(mp):
    return mp.findroot(mp.digamma, 1.46)


def zero_less_one(mp):
    return zero_of_digamma(mp) - 1


def _without_zero(mp, x):
    return mp.digamma(x) / (x - zero_of_digamma(mp))


def _digamma_rest(mp, z):
    """(log(x) - 1 / 2x - digamma(x)) * x * x for z = 1 / (x*x)."""
    x = 1 / mp.sqrt(z)
    return (mp.log(x) - 1 / (2 * x) - mp.digamma(x)) / z


# Below this the function is -1 / x to all digits.
POLE = 1e-20


def digamma_positive(x: Tensor, kind: type[Pair]) -> Pair:
    """For x from POLE on."""
    small, far = x < 1.0, m.greater_equal(x, constant(FAR, x.dtype))
    near = far.where(1.0, x)
    zero, below = (number(exactly(z), x.dtype, kind) for z in (zero_of_digamma, zero_less_one))
    t = kind.sum(near, small.where(-1.0, constant(-2.0, x.dtype)))
    value = evaluated(t, fitted(_without_zero, 1.0, FAR), kind)
    value = (kind.single(near) - below.where(small, zero)) * value
    one = kind.single(constant(1.0, x.dtype))
    value = (value - one / kind.single(small.where(x, 1.0))).where(small, value)
    inverse = far.where(x, FAR).reciprocal()
    square = inverse * inverse
    rest = evaluated(2.0 * FAR * FAR * square - 1.0, fitted(_digamma_rest, 0.0, 1 / FAR**2), kind, 1).high
    return (e.log_pair(far.where(x, FAR), kind) - kind.single(m.fma(square, rest, 0.5 * inverse))).where(far, value)


@in_kind
def digamma(x: Tensor, kind: type[Pair]) -> Tensor:
    size = m.absolute(x)
    plain = (size > POLE) & (size < m.INF)
    size = plain.where(size, 0.5)
    value = digamma_positive(size, kind)
    whole = m.floor(size).eq(size)
    cotangent = angles.cotangent_of_turns(whole.where(0.25, size)) * number(exactly(pi), x.dtype, kind)
    one = kind.single(constant(1.0, x.dtype))
    negative = whole.where(m.NAN, (value + one / kind.single(size) + cotangent).rounded)
    found = (x < 0).where(negative, value.rounded)
    ends = x.eq(m.INF).where(x, x.eq(-m.INF).where(m.NAN, (-x).reciprocal()))
    return plain.where(found, x.isnan().where(x, ends))


# ---- its derivatives -----------------------------------------------------------------------------------------------

BERNOULLI = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330]


def power(x: Pair, n: int) -> Pair:
    """x**n for n >= 1."""
    if n == 1:
        return x
    half = power(x, n // 2)
    return half * half * x if n % 2 else half * half


def inverse_power(x: Pair, n: int, kind: type[Pair]) -> Pair:
    return power(kind.single(constant(1.0, x.high.dtype)) / x, n)


def polygamma_positive(n: int, x: Tensor, kind: type[Pair]) -> Tensor:
    """(-1)**(n+1) * the n-th derivative of digamma, by recurrence and Euler-Maclaurin's series."""
    shift = 10 + n
    places = [kind.sum(x, constant(float(k), x.dtype)) for k in range(shift + 1)]
    rungs = functools.reduce(lambda total, rung: total + rung, (inverse_power(p, n + 1, kind) for p in places[:shift]))
    z = places[shift]
    factor = kind.single(constant(float(math.factorial(n)), x.dtype))
    tail = z / kind.single(constant(float(n), x.dtype)) + kind.single(constant(0.5, x.dtype))
    inverse = z.high.reciprocal()
    square = inverse * inverse
    series = [
        b * math.factorial(2 * k + n - 1) / math.factorial(2 * k) / math.factorial(n)
        for k, b in enumerate(BERNOULLI, 1)
    ]
    tail = tail + kind.single(inverse * polynomial(square, series[::-1]))
    value = ((rungs + tail * inverse_power(z, n + 1, kind)) * factor).rounded
    # pairs of what overflows are nan
    return (value.isnan() & (x < 1.0)).where(m.INF, value)


def cot_derivative(n: int) -> list[float]:
    """The n-th derivative of cot as a polynomial in cot, highest power first."""
    ascending = [0.0, 1.0]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(ascending)][1:]
        ascending = [-(a + b) for a, b in zip(slope + [0.0, 0.0], [0.0, 0.0] + slope, strict=True)]
    return ascending[::-1]


def trigamma(x: Tensor, kind: type[Pair]) -> Tensor:
    """With the CPU's reflection, which rounds pi * x before the sine, so that poles are large numbers there."""
    reflected = m.less_equal(x, constant(0.0, x.dtype))
    value = polygamma_positive(1, reflected.where(1.0 - x, x), kind)
    sine = angles.sin(constant(math.pi, x.dtype) * x)
    return reflected.where(math.pi**2 / (sine * sine) - value, value)


def polygamma_of(n: int, x: Tensor, kind: type[Pair]) -> Tensor:
    if n == 1:
        return trigamma(x, kind)
    reflected = x < 0
    value = polygamma_positive(n, reflected.where(1.0 - x, x), kind) * (-1) ** (n + 1)
    cotangent = angles.cotangent_of_turns(x).rounded
    mirrored = (-1) ** n * value - math.pi ** (n + 1) * polynomial(cotangent, cot_derivative(n))
    mirrored = m.floor(x).eq(x).where((-1) ** (n + 1) * m.INF, mirrored)
    return reflected.where(mirrored, value)


@lowers(aten.polygamma.default)
def polygamma(n, x, *, meta):
    x = operand(x, widen(meta[0].tiny))
    return digamma(x) if n == 0 else in_kind(lambda x, kind: polygamma_of(n, x, kind))(x)


register_unary(aten.lgamma.default, lgamma)
register_unary(aten.digamma.default, digamma)
