"""Division with its rounding modes and remainders, bit shifts, integer arithmetic, and the functions that look at how a
float is written."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.lower import maths as m
from torch_tinygrad.lower.maths import constant, operand, operands, widen
from torch_tinygrad.lower.pointwise import register_binary
from torch_tinygrad.lower.registry import is_number, lowers

aten = torch.ops.aten


def exactly(compute):
    """Float remainders are exact in C; float32 gets there through float64, whose quotient keeps every digit."""

    def apply(a: Tensor, b: Tensor) -> Tensor:
        if not dtypes.is_float(a.dtype):
            return compute(a, b)
        return compute(a.cast(m.widest_float()), b.cast(m.widest_float())).cast(a.dtype)

    return apply


@exactly
def fmod(a: Tensor, b: Tensor) -> Tensor:
    if not dtypes.is_float(a.dtype):
        return a.fmod(b)
    size, step = m.absolute(a), m.absolute(b)
    rest = size - (size / step).trunc() * step
    rest = (rest < 0).where(rest + step, m.greater_equal(rest, step).where(rest - step, rest))
    rest = (step.eq(m.INF) & size.ne(m.INF)).where(size, rest)
    return b.eq(0).where(m.NAN, m.copysign(rest, a))


@exactly
def remainder(a: Tensor, b: Tensor) -> Tensor:
    if not dtypes.is_float(a.dtype):
        return a % b
    rest = fmod(a, b)
    return (rest.ne(0) & (m.sign_bit(rest) ^ m.sign_bit(b))).where(rest + b, rest)


@exactly
def floor_divide(a: Tensor, b: Tensor) -> Tensor:
    if not dtypes.is_float(a.dtype):
        return a // b
    rest = fmod(a, b)
    quotient = (a - rest) / b
    quotient = (rest.ne(0) & (m.sign_bit(rest) ^ m.sign_bit(b))).where(quotient - 1.0, quotient)
    whole = m.floor(quotient)
    whole = (quotient - whole > 0.5).where(whole + 1.0, whole)
    return b.eq(0).where(a / b, whole)


def trunc_divide(a: Tensor, b: Tensor) -> Tensor:
    return a.div(b, rounding_mode="trunc")


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode, lifts=("other",))
def divide_with_mode(a, b, *, meta, rounding_mode=None):
    """A quotient of half types is rounded before it is truncated."""
    if rounding_mode == "trunc" and dtypes.is_float(meta[0].tiny):
        x, y = operands(widen(meta[0].tiny), a, b)
        return (x / y).cast(meta[0].tiny).cast(x.dtype).trunc()
    compute = {None: lambda x, y: x / y, "trunc": trunc_divide, "floor": floor_divide}[rounding_mode]
    return compute(*operands(widen(meta[0].tiny), a, b))


def unsigned(x: Tensor) -> Tensor:
    return x.bitcast({1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}[x.dtype.itemsize])


def shift_left(a: Tensor, b: Tensor) -> Tensor:
    width = a.dtype.bitsize
    valid = (b < width) & (b < 0).logical_not()
    moved = unsigned(a) << unsigned(valid.where(b, 0).cast(a.dtype))
    return valid.where(moved.bitcast(a.dtype), 0)


def shift_right(a: Tensor, b: Tensor) -> Tensor:
    """Arithmetic; counts outside the width leave only the sign."""
    last = a.dtype.bitsize - 1
    within = ((b < 0) | (b > last)).where(last, b).cast(a.dtype)
    if dtypes.is_unsigned(a.dtype):
        return ((b < 0) | (b > last)).where(0, a >> within)
    return a >> within


# Steps of Euclid's algorithm in one kernel: the kernels of a chain are all the same two.
EUCLID_STEPS = 8


def gcd(a: Tensor, b: Tensor) -> Tensor:
    """Euclid's algorithm, for as many steps as the width can need (Fibonacci numbers are its worst case). The lowest
    number of a type is its own absolute value: remainders keep C's signs."""
    a, b = m.absolute(a), m.absolute(b)
    for step in range(1, math.ceil(a.dtype.bitsize * 1.4405) + 2):
        done = a.eq(0)
        a, b = done.where(0, b.fmod(done.where(1, a))), done.where(b, a)
        if step % EUCLID_STEPS == 0:
            a, b = a.contiguous(), b.contiguous()
    return b


def lcm(a: Tensor, b: Tensor) -> Tensor:
    """Narrow types multiply as C's int and wrap in the end."""
    divisor = gcd(a, b)
    if a.dtype.itemsize < 4:
        a, b, divisor = (value.cast(dtypes.int32) for value in (a, b, divisor))
    return m.absolute(divisor.eq(0).where(0, a.div(divisor.eq(0).where(1, divisor), rounding_mode="trunc") * b))


def nextafter(a: Tensor, b: Tensor) -> Tensor:
    """One step in the integer order of the bits."""
    integer = m.float_bits(a.dtype)
    bits = a.bitcast(integer)
    away = (a < b) ^ (a < 0)
    step = away.where(bits + 1, bits - 1).bitcast(a.dtype)
    smallest = constant(1, integer).bitcast(a.dtype)
    step = a.eq(0).where(m.copysign(smallest.expand(step.shape), b), step)
    return (a.isnan() | b.isnan()).where(m.NAN, a.eq(b).where(b, step))


def log_add(a: Tensor, b: Tensor, base: float = 1.0) -> Tensor:
    """log(e**a + e**b), or with another base's logarithm as `base`."""
    top = m.maximum(a, b)
    gap = -m.absolute(a - b) * base
    return (a.eq(b) & m.absolute(a).eq(m.INF)).where(a, top + m.log1p(m.exp(gap)) / base)


def times_log(log):
    """x * log(y), where zero times anything but nan is zero."""
    return lambda x, y: y.isnan().where(m.NAN, x.eq(0).where(0.0, x * log(y)))


def overloads(op, *names: str) -> tuple:
    return tuple(getattr(op, name) for name in names)


BINARY = {
    overloads(aten.fmod, "Tensor", "Scalar"): fmod,
    overloads(aten.remainder, "Tensor", "Scalar", "Scalar_Tensor"): remainder,
    overloads(aten.floor_divide, "default", "Scalar"): floor_divide,
    overloads(aten.copysign, "Tensor", "Scalar"): m.copysign,
    overloads(aten.xlogy, "Tensor", "Scalar_Self", "Scalar_Other"): times_log(lambda y: y.log()),
    overloads(aten.special_xlog1py, "default", "self_scalar", "other_scalar"): times_log(m.log1p),
    (aten.logaddexp.default,): log_add,
    (aten.logaddexp2.default,): lambda a, b: log_add(a, b, math.log(2)),
    (aten.gcd.default,): gcd,
    (aten.lcm.default,): lcm,
    (aten.nextafter.default,): nextafter,
    (aten.heaviside.default,): lambda a, b: a.eq(0).where(b, (a > 0).cast(a.dtype)),
    (
        *overloads(aten.bitwise_left_shift, "Tensor", "Tensor_Scalar", "Scalar_Tensor"),
        *overloads(aten.__lshift__, "Tensor", "Scalar"),
    ): shift_left,
    (
        *overloads(aten.bitwise_right_shift, "Tensor", "Tensor_Scalar", "Scalar_Tensor"),
        *overloads(aten.__rshift__, "Tensor", "Scalar"),
    ): shift_right,
    (aten.ldexp.Tensor,): lambda a, b: a * b.exp2(),
}
for _overloads, _compute in BINARY.items():
    register_binary(_overloads, _compute)


@lowers(aten.frexp.Tensor)
def frexp(x):
    """Mantissa in [0.5, 1) and exponent; subnormals are scaled up first."""
    x = x.cast(widen(x.dtype))
    integer = m.float_bits(x.dtype)
    digits, bias = (23, 126) if x.dtype == dtypes.float32 else (52, 1022)
    tiny = m.absolute(x) < 2.0 ** -(bias - 1)
    bits = tiny.where(x * 2.0**64, x).bitcast(integer)
    exponent = ((bits >> digits) & (2 * bias + 3)) - bias
    mantissa = ((bits & ~((2 * bias + 3) << digits)) | (bias << digits)).bitcast(x.dtype)
    special = x.eq(0) | x.isnan() | m.absolute(x).eq(m.INF)
    return special.where(x, mantissa), special.where(0, tiny.where(exponent - 64, exponent)).cast(dtypes.int32)


@lowers(aten.nan_to_num.default)
def nan_to_num(x, nan=None, positive=None, negative=None):
    if not dtypes.is_float(x.dtype):
        return x
    largest = torch.finfo(
        {dtypes.float16: torch.float16, dtypes.bfloat16: torch.bfloat16}.get(x.dtype, torch.float32)
    ).max
    largest = torch.finfo(torch.float64).max if x.dtype == dtypes.float64 else largest
    x = x.cast(widen(x.dtype))
    x = x.isnan().where(0.0 if nan is None else nan, x)
    x = x.eq(m.INF).where(largest if positive is None else positive, x)
    return x.eq(-m.INF).where(-largest if negative is None else negative, x)


@lowers(aten.round.decimals)
def round_decimals(x, *, meta, decimals=0):
    x = operand(x, widen(meta[0].tiny))
    if not dtypes.is_float(x.dtype):
        return x
    scale = 10.0 ** abs(decimals)
    return m.round_even(x * scale) / scale if decimals >= 0 else m.round_even(x / scale) * scale


@lowers(aten.angle.default)
def angle(x, *, meta):
    x = operand(x, widen(meta[0].tiny))
    return x.isnan().where(x, (x < 0).where(math.pi, 0.0))


@lowers(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor)
def isin(elements, tests, *, assume_unique=False, invert=False):
    dtype = next(t.dtype for t in (elements, tests) if isinstance(t, Tensor))
    if not is_number(elements) and not is_number(tests):
        dtype = elements.dtype if elements.dtype == tests.dtype else dtypes.float64
    elements, tests = operands(dtype, elements, tests)
    if tests.numel() == 0:
        return constant(invert, dtypes.bool, elements.shape)
    found = elements.unsqueeze(-1).eq(tests.reshape((1,) * elements.ndim + (-1,))).max(-1)
    return found.logical_not() if invert else found
