"""Pointwise operators as tables: a row says which operator computes what, and the dtype rules live in one place each.

A function in a table gets tensors of the dtype PyTorch computes in (numbers have become constants of it)."""

from __future__ import annotations

import torch
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType, truncate

from torch_tinygrad.lower import angles
from torch_tinygrad.lower import elementary as e
from torch_tinygrad.lower import maths as m
from torch_tinygrad.lower.maths import operand, operands, widen
from torch_tinygrad.lower.registry import is_number, lowers, result_dtype

aten = torch.ops.aten


def whole_words(dtype: DType) -> DType:
    """The dtype to add and multiply in: integers narrower than a word wrap when the result is cast back, not before,
    since C computes them as words and tinygrad writes C."""
    return dtypes.int32 if dtypes.is_int(dtype) and dtype.itemsize < 4 else widen(dtype)


def rounded_operands(dtype: DType, *values) -> list[Tensor]:
    """Operands in the result's dtype, as most operators take them: numbers beside a half type are rounded to it."""
    return [operand(value, dtype).cast(whole_words(dtype)) for value in values]


def exact_numbers(dtype: DType, *values) -> list[Tensor]:
    """Operands of products and quotients: a number beside a half type keeps its digits."""

    def taken(value) -> Tensor:
        is_whole = isinstance(value, Tensor) and value.ndim > 0
        return operand(value, dtype if is_whole else widen(dtype)).cast(widen(dtype))

    return [taken(value) for value in values]


def register_unary(overload, compute) -> None:
    @lowers(overload)
    def unary(x, *, meta):
        return compute(operand(x, widen(meta[0].tiny)))


def register_binary(overloads, compute) -> None:
    """Computes in the dtype of the result."""

    @lowers(*overloads, lifts=("other", "self", "exponent"))
    def binary(a, b, *, meta):
        return compute(*(x.cast(widen(meta[0].tiny)) for x in operands(meta[0].tiny, a, b)))


def register_predicate(overloads, compute) -> None:
    """Computes in the promoted dtype of the arguments and answers a bool."""

    @lowers(*overloads, lifts=("other", "self"))
    def predicate(a, b):
        return compute(*operands(result_dtype(a, b), a, b))


def sign(x: Tensor) -> Tensor:
    if x.dtype == dtypes.bool:
        return x
    return (x > 0).cast(x.dtype) - (x < 0).cast(x.dtype) if not dtypes.is_float(x.dtype) else sign_float(x)


def sign_float(x: Tensor) -> Tensor:
    return (x > 0).where(1.0, (x < 0).where(-1.0, 0.0)).cast(x.dtype)


def whole(compute):
    """Rounding functions leave integers alone."""
    return lambda x: compute(x) if dtypes.is_float(x.dtype) else x


def reciprocal_sqrt(x: Tensor) -> Tensor:
    return x.sqrt().reciprocal()


UNARY = {
    aten.abs: m.absolute,
    aten.neg: lambda x: -x.cast(whole_words(x.dtype)),
    aten.exp: e.exp,
    aten.exp2: e.exp2,
    aten.expm1: e.expm1,
    aten.log: e.log,
    aten.log2: e.log2,
    aten.log10: e.log10,
    aten.log1p: e.log1p,
    aten.sqrt: lambda x: x.sqrt(),
    aten.rsqrt: reciprocal_sqrt,
    aten.reciprocal: lambda x: x.reciprocal(),
    aten.sin: angles.sin,
    aten.cos: angles.cos,
    aten.tanh: e.tanh,
    aten.sigmoid: e.sigmoid,
    aten.sign: sign,
    aten.sgn: sign,
    aten.floor: whole(m.floor),
    aten.ceil: whole(lambda x: -m.floor(-x)),
    aten.trunc: whole(lambda x: x.trunc()),
    aten.round: whole(m.round_even),
    aten.frac: lambda x: x - x.trunc(),
    aten.deg2rad: lambda x: x * 0.017453292519943295,
    aten.rad2deg: lambda x: x * 57.29577951308232,
    aten.bitwise_not: lambda x: ~x,
}
for _op, _compute in UNARY.items():
    register_unary(_op.default, _compute)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    return a & b if a.dtype == dtypes.bool else a * b


@lowers(aten.mul.Tensor, aten.mul.Scalar, lifts=("other",))
def mul(a, b, *, meta):
    dtype = meta[0].tiny
    return multiply(*(exact_numbers(dtype, a, b) if dtypes.is_float(dtype) else rounded_operands(dtype, a, b)))


@lowers(aten.div.Tensor, aten.div.Scalar, lifts=("other",))
def div(a, b, *, meta):
    a, b = exact_numbers(meta[0].tiny, a, b)
    return a / b


BINARY = {
    (aten.maximum.default,): m.maximum,
    (aten.minimum.default,): m.minimum,
    (aten.fmax.default,): lambda a, b: ((a < b) | a.isnan()).where(b, a),
    (aten.fmin.default,): lambda a, b: ((b < a) | a.isnan()).where(b, a),
    (aten.bitwise_and.Tensor, aten.bitwise_and.Scalar, aten.bitwise_and.Scalar_Tensor): lambda a, b: a & b,
    (aten.bitwise_or.Tensor, aten.bitwise_or.Scalar, aten.bitwise_or.Scalar_Tensor): lambda a, b: a | b,
    (aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar, aten.bitwise_xor.Scalar_Tensor): lambda a, b: a ^ b,
}
for _overloads, _compute in BINARY.items():
    register_binary(_overloads, _compute)

PREDICATES = {
    (aten.eq.Tensor, aten.eq.Scalar): lambda a, b: a.eq(b),
    (aten.ne.Tensor, aten.ne.Scalar): lambda a, b: a.ne(b),
    (aten.lt.Tensor, aten.lt.Scalar): lambda a, b: a < b,
    (aten.gt.Tensor, aten.gt.Scalar): lambda a, b: b < a,
    (aten.le.Tensor, aten.le.Scalar): m.less_equal,
    (aten.ge.Tensor, aten.ge.Scalar): m.greater_equal,
}
for _overloads, _compute in PREDICATES.items():
    register_predicate(_overloads, _compute)

LOGICAL = {
    aten.logical_and: lambda a, b: a & b,
    aten.logical_or: lambda a, b: a | b,
    aten.logical_xor: lambda a, b: a ^ b,
}
for _op, _compute in LOGICAL.items():

    @lowers(_op.default)
    def logical(a, b, compute=_compute):
        return compute(*operands(dtypes.bool, a, b))


@lowers(aten.logical_not.default)
def logical_not(x):
    return x.logical_not()


NUMBER_TESTS = {
    aten.isnan: lambda x: x.isnan(),
    aten.isinf: lambda x: m.absolute(x).eq(m.INF),
    aten.isposinf: lambda x: x.eq(m.INF),
    aten.isneginf: lambda x: x.eq(-m.INF),
}
for _op, _compute in NUMBER_TESTS.items():

    @lowers(_op.default)
    def number_test(x, compute=_compute):
        return compute(x.cast(widen(x.dtype))) if m.is_float(x) else m.constant(False, dtypes.bool, x.shape)


@lowers(aten.signbit.default)
def signbit(x):
    return m.constant(False, dtypes.bool, x.shape) if x.dtype == dtypes.bool else m.sign_bit(x)


def add(a: Tensor, b: Tensor, alpha=1) -> Tensor:
    """a + alpha * b, which the CPU rounds once; its alpha is rounded to the dtype of the result before."""
    if a.dtype == dtypes.bool:
        return a | (b if is_number(alpha) and alpha == 1 else b & operand(alpha, dtypes.bool))
    if is_number(alpha) and alpha in (1, -1):
        return a + b if alpha == 1 else a - b
    return m.fma(operand(alpha, b.dtype), b, a) if dtypes.is_float(a.dtype) else a + operand(alpha, b.dtype) * b


def negated(alpha):
    return -alpha if is_number(alpha) or alpha.dtype != dtypes.bool else alpha


def rounded_alpha(alpha, dtype: DType):
    return alpha if is_number(alpha) and alpha == 1 else rounded_operands(dtype, alpha)[0]


@lowers(aten.add.Tensor, lifts=("other", "alpha"))
def add_tensor(a, b, *, meta, alpha=1):
    dtype = meta[0].tiny
    return add(*rounded_operands(dtype, a, b), rounded_alpha(alpha, dtype))


@lowers(aten.add.Scalar, lifts=("other", "alpha"))
def add_scalar(a, b, alpha=1, *, meta):
    return add_tensor(a, b, meta=meta, alpha=alpha)


@lowers(aten.sub.Tensor, lifts=("other", "alpha"))
def sub_tensor(a, b, *, meta, alpha=1):
    dtype = meta[0].tiny
    return add(*rounded_operands(dtype, a, b), negated(rounded_alpha(alpha, dtype)))


@lowers(aten.sub.Scalar, lifts=("other", "alpha"))
def sub_scalar(a, b, alpha=1, *, meta):
    return sub_tensor(a, b, meta=meta, alpha=alpha)


@lowers(aten.rsub.Tensor, lifts=("other", "alpha"))
def rsub_tensor(a, b, *, meta, alpha=1):
    return sub_tensor(b, a, meta=meta, alpha=alpha)


@lowers(aten.rsub.Scalar, lifts=("other", "alpha"))
def rsub_scalar(a, b, alpha=1, *, meta):
    return sub_tensor(b, a, meta=meta, alpha=alpha)


def times(number, x: Tensor) -> Tensor:
    """number * x, which is x alone for PyTorch's default of 1."""
    return x if is_number(number) and number == 1 else multiply(operand(number, x.dtype), x)


@lowers(aten.addcmul.default, lifts=("value",))
def addcmul(x, a, b, *, meta, value=1):
    dtype = meta[0].tiny
    x, a, b = rounded_operands(dtype, x, a, b)
    return m.fma(times(value, a), b, x) if dtypes.is_float(dtype) else x + times(value, a) * b


@lowers(aten.addcdiv.default, lifts=("value",))
def addcdiv(x, a, b, *, meta, value=1):
    x, a, b = (t.cast(widen(meta[0].tiny)) for t in operands(meta[0].tiny, x, a, b))
    return x + times(value, a) / b


@lowers(aten.lerp.Scalar, aten.lerp.Tensor, lifts=("weight",))
def lerp(start, end, weight, *, meta):
    """From the nearer end, rounded once."""
    start, end, weight = exact_numbers(meta[0].tiny, start, end, weight)
    near_start = m.absolute(weight) < 0.5
    return m.fma(near_start.where(weight, weight - 1.0), end - start, near_start.where(start, end))


@lowers(aten.where.self, torch.ops.prims.where.default)
def where(condition, a, b, *, meta):
    return condition.cast(dtypes.bool).where(*operands(meta[0].tiny, a, b))


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor, lifts=("value",))
def masked_fill(x, mask, value):
    return mask.where(operand(value, x.dtype), x)


@lowers(aten.clamp.default, aten.clamp.Tensor, lifts=("min", "max"))
def clamp(x, low=None, high=None, *, meta):
    dtype = widen(meta[0].tiny)
    x = operand(x, dtype)
    if low is not None:
        x = m.maximum(x, operand(low, dtype))
    return x if high is None else m.minimum(x, operand(high, dtype))


@lowers(aten.clamp_min.default, aten.clamp_min.Tensor, lifts=("min",))
def clamp_min(x, low, *, meta):
    return clamp(x, low, meta=meta)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor, lifts=("max",))
def clamp_max(x, high, *, meta):
    return clamp(x, None, high, meta=meta)


def integer_power(base: Tensor, exponent: Tensor, number: int | None = None) -> Tensor:
    """Square and multiply over the exponent's bits. Those of tensors wider than a byte are a step of ATen's where there
    is one (engine/contractions.py). A negative exponent leaves only 1 and -1 nonzero."""
    bits, result, square = base.dtype.bitsize, m.constant(1, base.dtype), base
    for bit in range(bits):
        if number is not None:  # squares of constants would grow without end
            square = m.constant(truncate[base.dtype](pow(number, 1 << bit, 1 << bits)), base.dtype)
        result = ((exponent >> bit) & 1).ne(0).where(result * square, result)
        square = square * square
    unit = base.eq(-1).where(1 - 2 * (exponent & 1), base.eq(1).cast(base.dtype))
    return (exponent < 0).where(unit, result) if not dtypes.is_unsigned(base.dtype) else result


def repeated_power(x: Tensor, exponent: int) -> Tensor:
    """x**exponent for a small constant exponent, as multiplications."""
    result = None
    while exponent:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        x = x * x if exponent else x
    return result


def float_power(x: Tensor, y: Tensor) -> Tensor:
    """x**y with the special values of C's pow."""
    size = m.absolute(x)
    power = e.power_size(size, y)
    whole_y = y.trunc().eq(y)
    odd = whole_y & (y * 0.5).trunc().ne(y * 0.5)
    signed = odd.where(m.copysign(power, x), power)
    finite = (x < 0) & whole_y.logical_not() & size.ne(m.INF)
    power = finite.where(m.NAN, signed)
    one = y.eq(0) | x.eq(1) | (x.eq(-1) & m.absolute(y).eq(m.INF))
    return one.where(1.0, power)


@lowers(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(base, exponent, *, meta):
    result = meta[0].tiny
    dtype = widen(result)
    if is_number(exponent):
        x = operand(base, result).cast(dtype)
        if exponent == 0:
            return m.constant(1, dtype, x.shape)
        if result == dtypes.bfloat16 and exponent in (3, -2):
            square = (x * x).cast(result).cast(dtype)  # which the CPU rounds
            return square * x if exponent == 3 else square.reciprocal()
        if float(exponent).is_integer() and 0 < exponent and (exponent <= 4 or not dtypes.is_float(dtype)):
            return repeated_power(x, int(exponent))
        if dtypes.is_float(dtype) and exponent in (0.5, -0.5, -1, -2):
            return {0.5: x.sqrt, -0.5: lambda: reciprocal_sqrt(x), -1: x.reciprocal, -2: lambda: (x * x).reciprocal()}[
                exponent
            ]()
    if dtype == dtypes.bool:
        base, exponent = operands(dtype, base, exponent)
        return base | exponent.logical_not()
    given = (x.cast(dtype) for x in operands(result, base, exponent))
    if dtypes.is_float(dtype):
        return float_power(*given)
    return integer_power(*given, number=int(base) if is_number(base) else None)
