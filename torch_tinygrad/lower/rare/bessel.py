"""Bessel functions of the first and second kind: near zero polynomials in x*x, without the first zero, and a logarithm
and a pole beside them; further out in 1/x, beside the oscillation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from tinygrad import Tensor

from .. import angles
from .. import elementary as e
from .. import maths as m
from ..fits import evaluated, exactly, fitted, number
from ..maths import constant, polynomial
from ..pairs import Pair
from ..pointwise import register_unary
from ..special import in_double, in_kind

aten = torch.ops.aten

# Where waves begin.
WAVES_FROM = 5.0


@functools.cache
def zero_of_first(order: int) -> Callable:
    """The first zero after 0."""
    return functools.cache(lambda mp: mp.besseljzero(order, 1))


def _first_near(order: int) -> Callable:
    """J(x) / x**order / (x*x - zero**2) in z = x*x."""
    return lambda mp, z: mp.besselj(order, mp.sqrt(z)) / mp.sqrt(z) ** order / (z - zero_of_first(order)(mp) ** 2)


def _second_near(order: int) -> Callable:
    """What Y has beside the logarithm and the pole, divided by x**order, in z = x*x."""

    def value(mp, z):
        x = mp.sqrt(z)
        rest = mp.bessely(order, x) - 2 / mp.pi * mp.log(x) * mp.besselj(order, x)
        return (rest + 2 / mp.pi / x) / x if order else rest

    return value


def _amplitude(order: int, quadrature: bool) -> Callable:
    """P (or Q * x / 5) of J = sqrt(2 / (pi x)) (P cos - Q sin), Y = sqrt(2 / (pi x)) (P sin + Q cos), in (5 / x)**2."""

    def part(mp, t):
        x = WAVES_FROM / mp.sqrt(t)
        angle, root = x - (2 * order + 1) * mp.pi / 4, mp.sqrt(x * mp.pi / 2)
        j, y = mp.besselj(order, x) * root, mp.bessely(order, x) * root
        if quadrature:
            return (y * mp.cos(angle) - j * mp.sin(angle)) * x / WAVES_FROM
        return j * mp.cos(angle) + y * mp.sin(angle)

    return part


FIRST_NEAR, SECOND_NEAR = (tuple(form(order) for order in (0, 1)) for form in (_first_near, _second_near))
IN_PHASE, QUADRATURE = (tuple(_amplitude(order, q) for order in (0, 1)) for q in (False, True))


def near_and_far(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether x is near, and x for each of the two forms, which sees nothing from beyond its border."""
    is_near = x <= WAVES_FROM
    return is_near, is_near.where(x, WAVES_FROM), is_near.where(WAVES_FROM, x)


def waves(order: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """P and Q, each with its scale, and the sine and cosine they go with: of x less pi/4 or 3 pi/4, by those of x."""
    inverse = WAVES_FROM / x
    at, scale = 2.0 * inverse * inverse - 1.0, (1 / math.pi / x).sqrt()
    p, q = (evaluated(at, fitted(form[order], 0.0, 1.0), Pair, 1).rounded for form in (IN_PHASE, QUADRATURE))
    sine, cosine = angles.sin(x), angles.cos(x)
    turned = (-sine - cosine, sine - cosine) if order else (sine - cosine, sine + cosine)
    return p * scale, q * inverse * scale, *turned


def of_square(x: Tensor, kind: type[Pair]) -> Pair:
    """x*x from 0 to 32 as -1 to 1."""
    return kind.product(x, x).scaled(1 / 16) + kind.single(constant(-1.0, x.dtype))


def first_near(order: int, x: Tensor, kind: type[Pair]) -> Pair:
    """By the distances from the zeros."""
    zero = number(exactly(zero_of_first(order)), x.dtype, kind)
    value = evaluated(of_square(x, kind), fitted(FIRST_NEAR[order], 0.0, 32.0), kind, EXACT_STEPS)
    value = value * (kind.single(x) - zero) * (kind.single(x) + zero)
    return value.times(x) if order else value


EXACT_STEPS = 5


def first_kind(order: int):
    @in_kind
    def compute(x: Tensor, kind: type[Pair]) -> Tensor:
        is_near, near, far = near_and_far(m.absolute(x))
        p, q, sine, cosine = waves(order, far)
        value = is_near.where(first_near(order, near, kind).rounded, p * cosine - q * sine)
        return m.copysign(constant(1.0, x.dtype), x) * value if order else value

    return compute


def over_turn(mp):
    return 2 / mp.pi


def second_kind(order: int):
    @in_kind
    def compute(x: Tensor, kind: type[Pair]) -> Tensor:
        is_near, near, far = near_and_far(x)
        p, q, sine, cosine = waves(order, far)
        inner = (near > 0).where(near, 1.0)
        regular = evaluated(of_square(inner, kind), fitted(SECOND_NEAR[order], 0.0, 32.0), kind, EXACT_STEPS)
        singular = e.log_pair(inner, kind) * first_near(order, inner, kind)
        tiny = inner < 1e-290
        if order:
            regular = regular.times(inner)
            singular = singular - kind.single(constant(1.0, x.dtype)) / kind.single(tiny.where(1.0, inner))
        found = (regular + singular * number(exactly(over_turn), x.dtype, kind)).rounded
        found = tiny.where(-2 / math.pi / inner, found) if order else found
        value = is_near.where(found, p * sine + q * cosine)
        return x.eq(0).where(-m.INF, (x > 0).where(value, m.NAN))

    return compute


def spherical_first(x: Tensor) -> Tensor:
    """sin(x) / x, by its series near zero."""
    terms = [(-1) ** k / math.factorial(2 * k + 1) for k in range(8, -1, -1)]
    value = (m.absolute(x) < 0.5).where(polynomial(x * x, terms), angles.sin(x) / x)
    return m.absolute(x).eq(m.INF).where(0.0, value)


UNARY = {
    aten.special_bessel_j0: first_kind(0),
    aten.special_bessel_j1: first_kind(1),
    aten.special_bessel_y0: second_kind(0),
    aten.special_bessel_y1: second_kind(1),
    aten.special_spherical_bessel_j0: in_double(spherical_first),
}
for _op, _compute in UNARY.items():
    register_unary(_op.default, _compute)
