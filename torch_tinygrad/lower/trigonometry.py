"""Trigonometric and hyperbolic functions that tinygrad lacks or computes too coarsely."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor

from torch_tinygrad.lower import angles
from torch_tinygrad.lower import elementary as e
from torch_tinygrad.lower import maths as m
from torch_tinygrad.lower.maths import polynomial
from torch_tinygrad.lower.pointwise import register_binary, register_unary

aten = torch.ops.aten

HALF_PI = math.pi / 2
# atan(x) = x + x**3 * P(x*x) / Q(x*x) for |x| <= 0.66 (Cephes)
ATAN = (
    [-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1, -1.228866684490136173410e2,
     -6.485021904942025371773e1],
    [1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2, 4.853903996359136964868e2,
     1.945506571482613964425e2],
)  # fmt: skip


def atan(x: Tensor) -> Tensor:
    size = m.absolute(x)
    far, middle = size > 2.41421356237309504880, size > 0.66
    reduced = far.where(-size.reciprocal(), middle.where((size - 1.0) / (size + 1.0), size))
    square = reduced * reduced
    series = reduced + reduced * square * (polynomial(square, ATAN[0]) / polynomial(square, ATAN[1]))
    return m.copysign(far.where(HALF_PI, middle.where(HALF_PI / 2, 0.0)) + series, x)


def atan2(y: Tensor, x: Tensor) -> Tensor:
    above, beside = m.absolute(y), m.absolute(x)
    both_infinite = above.eq(m.INF) & beside.eq(m.INF)
    steep = beside < above
    quotient = steep.where(beside, above) / steep.where(above, beside)
    quotient = both_infinite.where(1.0, (above.eq(0) & beside.eq(0)).where(0.0, quotient))
    angle = atan(quotient)
    angle = steep.where(HALF_PI - angle, angle)
    angle = m.sign_bit(x).where(math.pi - angle, angle)
    return (x.isnan() | y.isnan()).where(m.NAN, m.copysign(angle, y))


def asin(x: Tensor) -> Tensor:
    return atan2(x, ((1.0 - x) * (1.0 + x)).sqrt())


def acos(x: Tensor) -> Tensor:
    return atan2(((1.0 - x) * (1.0 + x)).sqrt(), x)


def sinh(x: Tensor) -> Tensor:
    size = m.absolute(x)
    half = e.half_exp(size)
    near = e.expm1((size < 1.0).where(size, 0.0))
    return m.copysign((size < 1.0).where(0.5 * (near + near / (near + 1.0)), half - 0.25 / half), x)


def cosh(x: Tensor) -> Tensor:
    half = e.half_exp(m.absolute(x))
    return half + 0.25 / half


def asinh(x: Tensor) -> Tensor:
    size = m.absolute(x)
    large = size > 1e8
    bounded = large.where(1.0, size)
    near = e.log1p(bounded + bounded * bounded / (1.0 + (bounded * bounded + 1.0).sqrt()))
    return m.copysign(large.where(e.log(size) + math.log(2), near), x)


def acosh(x: Tensor) -> Tensor:
    large = x > 1e8
    rest = large.where(1.0, x) - 1.0
    value = large.where(e.log(x) + math.log(2), e.log1p(rest + (rest * (rest + 2.0)).sqrt()))
    return (x < 1.0).where(m.NAN, value)


def atanh(x: Tensor) -> Tensor:
    size = m.absolute(x)
    return m.copysign(0.5 * e.log1p(2.0 * size / (1.0 - size)), x)


def sinc(x: Tensor) -> Tensor:
    """Zero at whole numbers, where the sine of a rounded angle is not."""
    sine = angles.sin_of_turns(x) if angles.has_doubles() else m.sin_pi(x - 2.0 * m.round_even(x * 0.5))
    angle = x * math.pi
    return (m.absolute(x) < 1e-30).where(1.0, sine / angle)


def hypot(a: Tensor, b: Tensor) -> Tensor:
    """Scaled by the larger, so that squares neither overflow nor vanish."""
    a, b = m.absolute(a), m.absolute(b)
    large, small = m.maximum(a, b), m.minimum(a, b)
    quotient = large.eq(0).where(0.0, small / large)
    infinite = a.eq(m.INF) | b.eq(m.INF)
    return infinite.where(m.INF, large * (1.0 + quotient * quotient).sqrt())


UNARY = {
    aten.tan: angles.tan,
    aten.atan: atan,
    aten.asin: asin,
    aten.acos: acos,
    aten.sinh: sinh,
    aten.cosh: cosh,
    aten.asinh: asinh,
    aten.acosh: acosh,
    aten.atanh: atanh,
    aten.sinc: sinc,
}
for _op, _compute in UNARY.items():
    register_unary(_op.default, _compute)

register_binary((aten.atan2.default,), atan2)
register_binary((aten.hypot.default,), hypot)
