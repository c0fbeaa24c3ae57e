"""Bessel functions of the first, second and third kind: Chebyshev series of smooth parts of PyTorch's float64 values,
near zero in x*x beside the logarithm and the pole, far from it in 1/x beside the oscillation or the decay."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from tinygrad import Tensor

from torch_tinygrad.lower import angles
from torch_tinygrad.lower import elementary as e
from torch_tinygrad.lower import maths as m
from torch_tinygrad.lower.maths import constant, polynomial
from torch_tinygrad.lower.pointwise import register_unary
from torch_tinygrad.lower.special import chebyshev, clenshaw, i0e, i1e, in_double

aten = torch.ops.aten
J, Y = (torch.special.bessel_j0, torch.special.bessel_j1), (torch.special.bessel_y0, torch.special.bessel_y1)
I, K = (torch.special.i0, torch.special.i1), (torch.special.modified_bessel_k0, torch.special.modified_bessel_k1)
SCALED_K = (torch.special.scaled_modified_bessel_k0, torch.special.scaled_modified_bessel_k1)

# Where the series in x*x ends and the one in 1/x begins, as in PyTorch, whose values differ a little on the two sides.
WAVES_FROM, DECAY_FROM = 5.0, 2.0


def series(function: Callable, high: float) -> Callable[[Tensor], Tensor]:
    """A function of float64 tensors on [0, high], for tinygrad tensors."""
    return lambda t: clenshaw(t * (2 / high) - 1.0, chebyshev(function, 0.0, high))


def of_root(function: Callable) -> Callable:
    return lambda t: function(t.sqrt())


def phase(order: int) -> float:
    return (2 * order + 1) * math.pi / 4


def amplitude(order: int, quadrature: bool) -> Callable:
    """P (or Q * x / 5) of J = sqrt(2 / (pi x)) (P cos - Q sin), Y = sqrt(2 / (pi x)) (P sin + Q cos), in (5 / x)**2."""

    def part(t: torch.Tensor) -> torch.Tensor:
        x = WAVES_FROM / t.sqrt()
        angle, root = x - phase(order), (x * (math.pi / 2)).sqrt()
        j, y = J[order](x) * root, Y[order](x) * root
        if quadrature:
            return (y * angle.cos() - j * angle.sin()) * x / WAVES_FROM
        return j * angle.cos() + y * angle.sin()

    return part


FIRST_NEAR = (series(of_root(J[0]), WAVES_FROM**2), series(of_root(lambda x: J[1](x) / x), WAVES_FROM**2))
SECOND_NEAR = (
    series(of_root(lambda x: Y[0](x) - 2 / math.pi * x.log() * J[0](x)), WAVES_FROM**2),
    series(of_root(lambda x: (Y[1](x) - 2 / math.pi * (x.log() * J[1](x) - 1 / x)) / x), WAVES_FROM**2),
)
IN_PHASE = tuple(series(amplitude(order, False), 1.0) for order in (0, 1))
QUADRATURE = tuple(series(amplitude(order, True), 1.0) for order in (0, 1))


def near_and_far(x: Tensor, border: float) -> tuple[Tensor, Tensor, Tensor]:
    """Whether x is near, and x for each of the two series, which sees nothing from beyond its border."""
    is_near = x <= border
    return is_near, is_near.where(x, border), is_near.where(border, x)


def waves(order: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """P and Q, each with its scale, and the sine and cosine they go with."""
    inverse = WAVES_FROM / x
    square, scale = inverse * inverse, (2 / math.pi / x).sqrt()
    angle = x - constant(phase(order), x.dtype)
    return (
        IN_PHASE[order](square) * scale,
        QUADRATURE[order](square) * inverse * scale,
        angles.sin(angle),
        angles.cos(angle),
    )


def first_near(order: int, x: Tensor) -> Tensor:
    value = FIRST_NEAR[order](x * x)
    return value * x if order else value


def first_kind(order: int, x: Tensor) -> Tensor:
    is_near, near, far = near_and_far(m.absolute(x), WAVES_FROM)
    p, q, sine, cosine = waves(order, far)
    value = is_near.where(first_near(order, near), p * cosine - q * sine)
    return m.copysign(constant(1.0, x.dtype), x) * value if order else value


def second_kind(order: int, x: Tensor) -> Tensor:
    is_near, near, far = near_and_far(x, WAVES_FROM)
    p, q, sine, cosine = waves(order, far)
    regular = SECOND_NEAR[order](near * near)
    singular = e.log(near) * first_near(order, near)
    if order:
        regular, singular = regular * near, singular - near.reciprocal()
    value = is_near.where(regular + 2 / math.pi * singular, p * sine + q * cosine)
    return x.eq(0).where(-m.INF, (x < 0).where(m.NAN, value))


THIRD_NEAR = (
    series(of_root(lambda x: K[0](x) + (x / 2).log() * I[0](x)), DECAY_FROM**2),
    series(of_root(lambda x: x * (K[1](x) - (x / 2).log() * I[1](x))), DECAY_FROM**2),
)


def decay(function: Callable) -> Callable[[Tensor], Tensor]:
    return series(lambda t: function(1 / t) / t.sqrt(), 1 / DECAY_FROM)


THIRD_FAR = tuple(map(decay, SCALED_K))


def third_kind(order: int, x: Tensor, scaled: bool) -> Tensor:
    is_near, near, far = near_and_far(x, DECAY_FROM)
    growth = e.exp(near)
    regular, logarithm = THIRD_NEAR[order](near * near), e.log(near) - math.log(2)
    low = regular / near + logarithm * i1e(near) * growth if order else regular - logarithm * i0e(near) * growth
    high = THIRD_FAR[order](far.reciprocal()) / far.sqrt()
    value = is_near.where(low * growth if scaled else low, high if scaled else high * e.exp(-far))
    return x.eq(0).where(m.INF, (x < 0).where(m.NAN, value))


def spherical_first(x: Tensor) -> Tensor:
    """sin(x) / x, by its series near zero."""
    terms = [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1)]
    value = (m.absolute(x) < 0.5).where(polynomial(x * x, terms), angles.sin(x) / x)
    return m.absolute(x).eq(m.INF).where(0.0, value)


UNARY = {
    aten.special_bessel_j0: lambda x: first_kind(0, x),
    aten.special_bessel_j1: lambda x: first_kind(1, x),
    aten.special_bessel_y0: lambda x: second_kind(0, x),
    aten.special_bessel_y1: lambda x: second_kind(1, x),
    aten.special_modified_bessel_k0: lambda x: third_kind(0, x, scaled=False),
    aten.special_modified_bessel_k1: lambda x: third_kind(1, x, scaled=False),
    aten.special_scaled_modified_bessel_k0: lambda x: third_kind(0, x, scaled=True),
    aten.special_scaled_modified_bessel_k1: lambda x: third_kind(1, x, scaled=True),
    aten.special_spherical_bessel_j0: spherical_first,
}
for _op, _compute in UNARY.items():
    register_unary(_op.default, in_double(_compute))
