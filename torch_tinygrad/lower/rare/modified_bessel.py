"""Modified Bessel functions of the first and the third kind: power series near zero, beside a logarithm and a pole for
the third, and polynomials in 1/x, times the root and the exponential, further out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tinygrad import Tensor

from .. import elementary as e
from .. import maths as m
from ..fits import evaluated, exactly, fitted, number, series
from ..maths import constant
from ..pairs import Pair
from ..pointwise import register_unary
from ..registry import lowers
from ..special import in_kind

aten = torch.ops.aten
# Where the series of the first kind ends, and that of the third.
GROWTH_FROM, DECAY_FROM = 8.0, 1.0
EXACT_STEPS = 8


def _grown(order: int) -> Callable:
    """I(x) * exp(-x) * sqrt(x) in u = 1/x."""
    return lambda mp, u: mp.besseli(order, 1 / u) * mp.exp(-1 / u) / mp.sqrt(u)


def _decayed(order: int) -> Callable:
    """K(x) * exp(x) * sqrt(x) in u = 1/x; far out Hankel's sum, since mpmath takes long there."""

    def value(mp, u):
        if u > 0.01:
            return mp.besselk(order, 1 / u) * mp.exp(1 / u) / mp.sqrt(u)
        term = total = mp.mpf(1)
        for k in range(1, 60):
            term = term * (4 * order * order - (2 * k - 1) ** 2) / (8 * k) * u
            total += term
        return total * mp.sqrt(mp.pi / 2)

    return value


def _beside_logarithm(mp, z):
    x = mp.sqrt(z)
    return mp.besselk(0, x) + mp.log(x / 2) * mp.besseli(0, x)


def _beside_pole(mp, z):
    """(K1(x) - log(x/2) * I1(x) - 1/x) / x"""
    x = mp.sqrt(z)
    return (mp.besselk(1, x) - mp.log(x / 2) * mp.besseli(1, x) - 1 / x) / x


GROWN, DECAYED = (tuple(form(order) for order in (0, 1)) for form in (_grown, _decayed))


def _terms(order: int) -> Callable:
    """I(x) / (x/2)**order in powers of (x/2)**2: all of one sign."""
    return lambda mp, k: 1 / (mp.factorial(k) * mp.factorial(k + order))


TERMS, TERM_COUNT = (_terms(0), _terms(1)), 28


def first_near(order: int, x: Tensor, kind: type[Pair]) -> Pair:
    """I(x) for 0 <= x <= GROWTH_FROM."""
    half = x * 0.5
    value = evaluated(kind.product(half, half), series(TERMS[order], TERM_COUNT), kind, EXACT_STEPS)
    return value.times(half) if order else value


def first_kind(order: int, scaled: bool):
    @in_kind
    def compute(x: Tensor, kind: type[Pair]) -> Tensor:
        size = m.absolute(x)
        is_near = size < GROWTH_FROM
        near, far = is_near.where(size, GROWTH_FROM), is_near.where(GROWTH_FROM, size)
        low = first_near(order, near, kind)
        flat = evaluated(2.0 * GROWTH_FROM / far - 1.0, fitted(GROWN[order], 0.0, 1 / GROWTH_FROM), kind)
        high = flat / kind.single((far < m.INF).where(far, 1.0)).sqrt()
        n, factor = e.exp_parts(-kind.single(near) if scaled else kind.single(far), kind)
        if scaled:
            value = is_near.where(e.grown(n, low * factor), (far < m.INF).where(high.rounded, 0.0))
        else:
            value = is_near.where(low.rounded, (far < m.INF).where(e.grown(n, high * factor), m.INF))
        value = x.isnan().where(x, value)
        return m.copysign(value, x) if order else value

    return compute


def log_of_two(mp):
    return mp.log(2)


# Below this the third kind of order 1 is 1 / x.
POLE = 1e-30


def third_kind(order: int, scaled: bool):
    @in_kind
    def compute(x: Tensor, kind: type[Pair]) -> Tensor:
        is_near = x <= DECAY_FROM
        near, far = (is_near & (x > 0)).where(x, DECAY_FROM), is_near.where(DECAY_FROM, (x < m.INF).where(x, 1e300))
        logarithm = e.log_pair(near, kind) - number(exactly(log_of_two), x.dtype, kind)
        regular = fitted((_beside_logarithm, _beside_pole)[order], 0.0, DECAY_FROM**2)
        low = evaluated(2.0 * near * near - 1.0, regular, kind)
        grown = first_near(order, near, kind) * logarithm
        low = low.times(near) + grown if order else low - grown
        if order:
            low = low + kind.single(constant(1.0, x.dtype)) / kind.single((near < POLE).where(1.0, near))
        flat = evaluated(2.0 * DECAY_FROM / far - 1.0, fitted(DECAYED[order], 0.0, 1 / DECAY_FROM), kind)
        high = flat / kind.single(far).sqrt()
        n, factor = e.exp_parts(kind.single(near) if scaled else -kind.single(far), kind)
        if scaled:
            value = is_near.where(e.grown(n, low * factor), high.rounded)
        else:
            value = is_near.where(low.rounded, e.grown(n, high * factor))
        if order:
            value = (near < POLE).where(near.reciprocal(), value)
        value = x.eq(m.INF).where(0.0, value)
        return x.eq(0).where(m.INF, (x > 0).where(value, m.NAN))

    return compute


i0, i1, i0e, i1e = (first_kind(order, scaled) for scaled in (False, True) for order in (0, 1))
UNARY = {
    aten.i0: i0,
    aten.special_i1: i1,
    aten.special_i0e: i0e,
    aten.special_i1e: i1e,
    aten.special_modified_bessel_i0: i0,
    aten.special_modified_bessel_i1: i1,
    aten.special_modified_bessel_k0: third_kind(0, scaled=False),
    aten.special_modified_bessel_k1: third_kind(1, scaled=False),
    aten.special_scaled_modified_bessel_k0: third_kind(0, scaled=True),
    aten.special_scaled_modified_bessel_k1: third_kind(1, scaled=True),
}
for _op, _compute in UNARY.items():
    register_unary(_op.default, _compute)


@lowers(aten.kaiser_window.default, aten.kaiser_window.periodic, aten.kaiser_window.beta)
def kaiser_window(length, periodic=True, beta=12.0, *, meta):
    if length <= 1:
        return m.constant(1, meta[0].tiny, meta[0].shape)
    half = (length if periodic else length - 1) / 2
    place = m.index_range(length).cast(m.widen(meta[0].tiny)) / half - 1.0
    height = (1.0 - place * place).maximum(0.0).sqrt() * beta
    return i0e(height) * e.exp(height - beta) / torch.special.i0e(torch.tensor(beta, dtype=torch.float64)).item()
