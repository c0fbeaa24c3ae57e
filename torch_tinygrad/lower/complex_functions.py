"""Elementary functions of complex numbers, in forms that neither overflow nor cancel early (Kahan's, where there is a
choice of branch cut)."""

from __future__ import annotations

import cmath
import math

from tinygrad import Tensor, dtypes

from . import angles
from . import elementary as e
from . import maths as m
from . import trigonometry as t
from .complex import Complex, as_complex


def one_like(z: Complex) -> Complex:
    return Complex(m.constant(1, z.dtype, z.shape), m.constant(0, z.dtype, z.shape))


def polar(size: Tensor, angle: Tensor) -> Complex:
    return Complex(size * angles.cos(angle), size * angles.sin(angle))


def reciprocal(z: Complex) -> Complex:
    return one_like(z) / z


def sgn(z: Complex) -> Complex:
    size = z.abs()
    return z.map(lambda part: size.eq(0).where(0.0, part / size))


def exp(z: Complex) -> Complex:
    """In two factors, since e**re may overflow where its product with a small cosine does not."""
    half = e.exp(z.re * 0.5)
    vanishes = z.re.eq(-m.INF)
    turned = polar(half, z.im).map(lambda part: vanishes.where(0.0, part * half))
    return Complex(turned.re, z.im.eq(0).where(z.im, turned.im))


def log_size(z: Complex) -> Tensor:
    """log|z|: near the unit circle from the distance to it, elsewhere from the larger part."""
    a, b = m.absolute(z.re), m.absolute(z.im)
    large, small = m.maximum(a, b), m.minimum(a, b)
    near = (large > 0.5) & (large < 2.0)
    unit = near.where(large, 1.0)
    close = 0.5 * e.log1p((unit - 1.0) * (unit + 1.0) + near.where(small * small, 0.0))
    ratio = (large.eq(0) | large.eq(m.INF)).where(0.0, small / large)
    far = e.log(large) + 0.5 * e.log1p(ratio * ratio)
    infinite = a.eq(m.INF) | b.eq(m.INF)
    return infinite.where(m.INF, near.where(close, far))


def log(z: Complex) -> Complex:
    return Complex(log_size(z), z.angle())


def logarithm(base: float):
    """The logarithm to a base."""
    return lambda z: log(z).map(lambda part: part * (1 / math.log(base)))


def log1p(z: Complex) -> Complex:
    moved = z + 1.0
    near = z.abs() < 0.5
    close = 0.5 * e.log1p(near.where(z.re * (z.re + 2.0) + z.im * z.im, 0.0))
    return Complex(near.where(close, log_size(moved)), moved.angle())


def expm1(z: Complex) -> Complex:
    half = angles.sin(z.im * 0.5)
    return Complex(e.expm1(z.re) * angles.cos(z.im) - 2.0 * half * half, e.exp(z.re) * angles.sin(z.im))


def sqrt(z: Complex) -> Complex:
    """The root with a non-negative real part, from |z| and the larger of the two half sums."""
    width = m.absolute(z.re)
    root = (width * 0.5 + z.map(lambda part: part * 0.5).abs()).sqrt()
    other = root.eq(0).where(0.0, m.absolute(z.im) * 0.5 / root)
    right = m.sign_bit(z.re).logical_not()
    steep = m.absolute(z.im).eq(m.INF)
    re = steep.where(m.INF, right.where(root, other))
    return Complex(re, m.copysign(steep.where(m.INF, right.where(other, root)), z.im))


def rsqrt(z: Complex) -> Complex:
    return reciprocal(sqrt(z))


def sinh(z: Complex) -> Complex:
    return Complex(t.sinh(z.re) * angles.cos(z.im), t.cosh(z.re) * angles.sin(z.im))


def cosh(z: Complex) -> Complex:
    return Complex(t.cosh(z.re) * angles.cos(z.im), t.sinh(z.re) * angles.sin(z.im))


def tanh(z: Complex) -> Complex:
    limit = 22.0 if z.dtype == dtypes.float64 else 11.0
    far = m.absolute(z.re) > limit
    x = far.where(0.0, z.re)
    grown, sine, cosine = t.sinh(x), angles.sin(z.im), angles.cos(z.im)
    divisor = grown * grown + cosine * cosine
    rest = 4.0 * sine * cosine * e.exp(-2.0 * m.absolute(z.re))
    re = far.where(m.copysign(m.constant(1, x.dtype, z.shape), z.re), grown * t.cosh(x) / divisor)
    return Complex(re, far.where(rest, sine * cosine / divisor))


def _sides(z: Complex) -> tuple[Complex, Complex]:
    """sqrt(1 - z) and sqrt(1 + z)."""
    return sqrt(-z + 1.0), sqrt(z + 1.0)


def asin(z: Complex) -> Complex:
    low, high = _sides(z)
    return Complex(t.atan2(z.re, (low * high).re), t.asinh((low.conj() * high).im))


def acos(z: Complex) -> Complex:
    low, high = _sides(z)
    return Complex(2.0 * t.atan2(low.re, high.re), t.asinh((high.conj() * low).im))


def acosh(z: Complex) -> Complex:
    low, high = sqrt(z + -1.0), sqrt(z + 1.0)
    return Complex(t.asinh((low.conj() * high).re), 2.0 * t.atan2(low.im, high.re))


def atanh(z: Complex) -> Complex:
    size, square = m.absolute(z.re), z.im * z.im
    below, above = 1.0 - size, 1.0 + size
    re = 0.25 * e.log1p(4.0 * size / (below * below + square))
    return Complex(m.copysign(re, z.re), 0.5 * t.atan2(2.0 * z.im, below * above - square))


def turned(hyperbolic):
    """f(z) = g(iz) / i: what the circular functions are to the hyperbolic ones."""
    return lambda z: hyperbolic(z.times_i()).over_i()


def asinh(z: Complex) -> Complex:
    return asin(z.over_i()).times_i()


def sigmoid(z: Complex) -> Complex:
    return reciprocal(exp(-z) + 1.0)


def whole_power(z: Complex, exponent: int) -> Complex:
    """z**exponent for a small positive exponent, as multiplications."""
    result = z
    for bit in bin(exponent)[3:]:
        result = result * result
        result = result * z if bit == "1" else result
    return result


SPECIAL_POWERS = {0.5: sqrt, -0.5: rsqrt, -1: reciprocal, -2: lambda z: reciprocal(z * z)}


def power(base: Complex, exponent: Complex) -> Complex:
    """As the CPU has it: a power of zero is nan where the exponent's real part is zero too."""
    result = exp(exponent * log(base))
    return result.chosen(base.nonzero() | (exponent.re > 0).logical_not(), as_complex(0, base.dtype))


def power_of(base: complex, exponent: Complex) -> Complex:
    """A number to a complex power."""
    if base == 1:
        return one_like(exponent)
    if base == 0:
        return power(one_like(exponent) * 0.0, exponent)
    return exp(exponent * as_complex(cmath.log(base), exponent.dtype))


UNARY = {
    "reciprocal": reciprocal,
    "sgn": sgn,
    "exp": exp,
    "exp2": lambda z: exp(z * math.log(2)),
    "expm1": expm1,
    "log": log,
    "log2": logarithm(2),
    "log10": logarithm(10),
    "log1p": log1p,
    "sqrt": sqrt,
    "rsqrt": rsqrt,
    "sin": turned(sinh),
    "cos": lambda z: cosh(z.times_i()),
    "tan": turned(tanh),
    "asin": asin,
    "acos": acos,
    "atan": turned(atanh),
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
    "sigmoid": sigmoid,
    "silu": lambda z: z * sigmoid(z),
    "neg": lambda z: -z,
    "conj_physical": Complex.conj,
    "_conj_physical": Complex.conj,
    "sinc": lambda z: _sinc(z * math.pi),
}


def _sinc(z: Complex) -> Complex:
    one = one_like(z)
    return (turned(sinh)(z) / one.chosen(z.nonzero().logical_not(), z)).chosen(z.nonzero(), one)
