"""Pointwise operators, factories and copies of complex numbers. Everything is computed with parts of the dtype PyTorch
computes in."""

from __future__ import annotations

import torch
from tinygrad import Tensor, dtypes

from . import complex_functions as f
from . import maths as m
from .cast import convert
from .complex import Complex, as_complex, is_complex_number, lowers_complex
from .maths import widen
from .registry import TO_TORCH, Meta

aten = torch.ops.aten


for _name, _compute in f.UNARY.items():

    @lowers_complex(getattr(aten, _name).default)
    def unary(z, *, meta, compute=_compute):
        return compute(as_complex(z, widen(meta[0].tiny)))


lowers_complex(torch.ops.prims.conj_physical.default)(Complex.conj)

TO_REAL = {
    aten.abs: Complex.abs,
    aten.angle: Complex.angle,
    aten.isnan: lambda z: z.re.isnan() | z.im.isnan(),
    aten.isinf: lambda z: m.absolute(z.re).eq(m.INF) | m.absolute(z.im).eq(m.INF),
    aten.logical_not: lambda z: z.nonzero().logical_not(),
}
for _op, _compute in TO_REAL.items():

    @lowers_complex(_op.default)
    def to_real(z, *, compute=_compute):
        return compute(z.cast(widen(z.dtype)))


def _scaled(b: Complex, alpha) -> Complex:
    if isinstance(alpha, Tensor):
        return b * alpha.cast(b.dtype)
    return b if alpha == 1 else b * as_complex(alpha, b.dtype) if isinstance(alpha, complex) else b * float(alpha)


def _dividend(a, b, dtype) -> Complex:
    """a / b; a real divisor divides the parts."""
    a = as_complex(a, dtype)
    if isinstance(b, Complex) or isinstance(b, complex):
        return a / as_complex(b, dtype)
    return a.map(lambda part: part / (b.cast(dtype) if isinstance(b, Tensor) else m.constant(b, dtype)))


def _times(a, b, dtype) -> Complex:
    if not isinstance(a, (Complex, complex)):
        a, b = b, a
    if isinstance(b, (Complex, complex)):
        return as_complex(a, dtype) * as_complex(b, dtype)
    return as_complex(a, dtype) * (b.cast(dtype) if isinstance(b, Tensor) else float(b))


def _broadcast(a: Complex, b: Complex) -> tuple[Complex, Complex]:
    shape = torch.broadcast_shapes(a.shape, b.shape)
    return a.map(lambda p: p._broadcast_to(shape)), b.map(lambda p: p._broadcast_to(shape))


def _sum(a, b, alpha, meta, sign=1) -> Complex:
    dtype = widen(meta[0].tiny)
    b = _scaled(as_complex(b, dtype), alpha)
    a, b = _broadcast(as_complex(a, dtype), b if sign > 0 else -b)
    return a + b


@lowers_complex(aten.add.Tensor, lifts=("other", "alpha"))
def add(a, b, *, meta, alpha=1):
    return _sum(a, b, alpha, meta)


@lowers_complex(aten.add.Scalar, lifts=("other", "alpha"))
def add_scalar(a, b, alpha=1, *, meta):
    return _sum(a, b, alpha, meta)


@lowers_complex(aten.sub.Tensor, lifts=("other", "alpha"))
def sub(a, b, *, meta, alpha=1):
    return _sum(a, b, alpha, meta, sign=-1)


@lowers_complex(aten.sub.Scalar, lifts=("other", "alpha"))
def sub_scalar(a, b, alpha=1, *, meta):
    return _sum(a, b, alpha, meta, sign=-1)


@lowers_complex(aten.rsub.Tensor, lifts=("other", "alpha"))
def rsub(a, b, *, meta, alpha=1):
    return _sum(b, a, alpha, meta, sign=-1)


@lowers_complex(aten.rsub.Scalar, lifts=("other", "alpha"))
def rsub_scalar(a, b, alpha=1, *, meta):
    return _sum(b, a, alpha, meta, sign=-1)


@lowers_complex(aten.mul.Tensor, aten.mul.Scalar, lifts=("other",))
def mul(a, b, *, meta):
    return _times(a, b, widen(meta[0].tiny))


@lowers_complex(aten.div.Tensor, aten.div.Scalar, lifts=("other",))
def div(a, b, *, meta):
    return _dividend(a, b, widen(meta[0].tiny))


@lowers_complex(aten.addcmul.default, lifts=("value",))
def addcmul(x, a, b, *, meta, value=1):
    return _sum(x, _scaled(_times(a, b, widen(meta[0].tiny)), value), 1, meta)


@lowers_complex(aten.addcdiv.default, lifts=("value",))
def addcdiv(x, a, b, *, meta, value=1):
    return _sum(x, _scaled(_dividend(a, b, widen(meta[0].tiny)), value), 1, meta)


@lowers_complex(aten.lerp.Scalar, aten.lerp.Tensor, lifts=("weight",))
def lerp(start, end, weight, *, meta):
    dtype = widen(meta[0].tiny)
    start, end, weight = (as_complex(v, dtype) for v in (start, end, weight))
    gap = end + -start
    near = weight.abs() < 0.5
    return (start + weight * gap).chosen(near, end + -(gap * (-weight + 1.0)))


@lowers_complex(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_(base, exponent, *, meta):
    dtype = widen(meta[0].tiny)
    if is_complex_number(exponent) and not isinstance(exponent, bool) and complex(exponent).imag == 0:
        real, z = complex(exponent).real, as_complex(base, dtype)
        if real == 0:
            return f.one_like(z)
        if real.is_integer() and 0 < real <= 8:
            return f.whole_power(z, int(real))
        if real in f.SPECIAL_POWERS:
            return f.SPECIAL_POWERS[real](z)
    if is_complex_number(base):
        return f.power_of(complex(base), as_complex(exponent, dtype))
    return f.power(*_broadcast(as_complex(base, dtype), as_complex(exponent, dtype)))


@lowers_complex(aten.logaddexp.default)
def logaddexp(a, b, *, meta):
    a, b = _broadcast(*(as_complex(v, widen(meta[0].tiny)) for v in (a, b)))
    ahead = m.greater_equal(a.re, b.re)
    top, rest = a.chosen(ahead, b), b.chosen(ahead, a)
    infinite = m.absolute(top.re).eq(m.INF) & a.eq(b)
    return top.chosen(infinite, top + f.log1p(f.exp(rest - top)))


def _promoted(*values):
    """Every value as a Complex with parts of the widest dtype among them."""
    parts = [TO_TORCH[v.dtype] for v in values if isinstance(v, Complex)]
    parts += [TO_TORCH[v.dtype] for v in values if isinstance(v, Tensor) and v.ndim]
    dtype = parts[0]
    for part in parts[1:]:
        dtype = torch.promote_types(dtype, part)
    tiny = widen(Meta((), dtype).tiny)
    return [as_complex(v, tiny) for v in values]


for _overloads, _answer in {
    (aten.eq.Tensor, aten.eq.Scalar): lambda equal: equal,
    (aten.ne.Tensor, aten.ne.Scalar): lambda equal: equal.logical_not(),
}.items():

    @lowers_complex(*_overloads, lifts=("other",))
    def equality(a, b, *, answer=_answer):
        a, b = _promoted(a, b)
        return answer(a.eq(b))


@lowers_complex(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor)
def isin(elements, tests, *, assume_unique=False, invert=False):
    elements, tests = _promoted(elements, tests)
    if 0 in tests.shape:
        return m.constant(invert, dtypes.bool, elements.shape)
    elements = elements.map(lambda p: p.unsqueeze(-1))
    found = elements.eq(tests.map(lambda p: p.reshape((1,) * (elements.ndim - 1) + (-1,)))).max(-1)
    return found.logical_not() if invert else found


# ---- operators whose gradients are operators of their own ----


@lowers_complex(aten.sigmoid_backward.default)
def sigmoid_backward(grad, y, *, meta):
    grad, y = (as_complex(v, widen(meta[0].tiny)) for v in (grad, y))
    return grad * (y * (-y + 1.0)).conj()


@lowers_complex(aten.tanh_backward.default)
def tanh_backward(grad, y, *, meta):
    grad, y = (as_complex(v, widen(meta[0].tiny)) for v in (grad, y))
    return grad * (-(y * y) + 1.0).conj()


# ---- made of parts ----


@lowers_complex(torch.ops.prims.where.default)
def where(condition, a, b, *, meta):
    a, b = (as_complex(v, meta[0].tiny) for v in (a, b))
    return a.chosen(condition, b)


@lowers_complex(aten.complex.default)
def complex_(re, im, *, meta):
    shape = meta[0].shape
    return Complex(re._broadcast_to(shape), im._broadcast_to(shape))


@lowers_complex(aten.polar.default)
def polar(size, angle, *, meta):
    shape = meta[0].shape
    return f.polar(size._broadcast_to(shape), angle._broadcast_to(shape))


# ---- copies and constants ----


def _converted(value, result: Meta) -> Complex | Tensor:
    """A conversion that drops the imaginary part where the result is real; what is not zero is true."""
    if result.dtype.is_complex:
        if isinstance(value, Complex):
            return value.cast(result.tiny)
        return as_complex(value, result.tiny)
    if isinstance(value, Complex):
        value = value.nonzero() if result.dtype is torch.bool else value.re
    elif isinstance(value, complex):
        value = value != 0 if result.dtype is torch.bool else value.real
    return convert(value, result.tiny) if isinstance(value, Tensor) else m.constant(value, result.tiny)


def _filled(value, result: Meta) -> Complex | Tensor:
    value = _converted(value, result)
    spread = lambda part: part.reshape((1,) * len(result.shape)).expand(result.shape)  # noqa: E731
    return value.map(spread) if isinstance(value, Complex) else spread(value)


@lowers_complex(aten._to_copy.default, aten.clone.default)
def to_copy(z, *, meta):
    return _converted(z, meta[0])


@lowers_complex(aten.copy.default)
def copy(destination, source, non_blocking=False, *, meta):
    return _converted(source, meta[0]).expand(meta[0].shape)


@lowers_complex(aten.fill.Scalar, aten.fill.Tensor, aten.full.default, aten.full_like.default,
                lifts=("value", "fill_value"))  # fmt: skip
def full(_, value, *, meta):
    return _filled(value, meta[0])


@lowers_complex(aten.new_full.default, lifts=("fill_value",))
def new_full(x, size, value, *, meta):
    return _filled(value, meta[0])


@lowers_complex(aten.scalar_tensor.default, lifts=("s",))
def scalar_tensor(value, *, meta):
    return _filled(value, meta[0])


for _number, _constants in {
    0: (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.zero.default),
    1: (aten.ones.default, aten.ones_like.default, aten.new_ones.default),
}.items():

    @lowers_complex(*_constants)
    def constants(*arguments, meta, number=_number):
        return _filled(number, meta[0])
