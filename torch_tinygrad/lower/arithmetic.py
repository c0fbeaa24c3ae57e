"""Division with its rounding modes and remainders, bit shifts, integer arithmetic, and the functions that look at how a
float is written."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

from torch_tinygrad.lower import elementary as e
from torch_tinygrad.lower import maths as m
from torch_tinygrad.lower import remainders
from torch_tinygrad.lower.maths import constant, operand, operands, widen
from torch_tinygrad.lower.pointwise import exact_numbers, register_binary, rounded_operands
from torch_tinygrad.lower.registry import is_number, lowers

aten = torch.ops.aten


def divisor(a: Tensor, b: Tensor) -> Tensor:
    """What to divide integers by, without what a processor traps on: zeros, which were refused when the call was
    recorded but also lie beyond edges, and -1 under the lowest number, whose quotient is that number again."""
    traps = b.eq(0)
    if a.dtype.itemsize >= 4 and not dtypes.is_unsigned(a.dtype):
        traps = traps | (b.eq(-1) & a.eq(constant(1 << (a.dtype.bitsize - 1), a.dtype)))
    return traps.where(1, b)


def fmod(a: Tensor, b: Tensor) -> Tensor:
    return remainders.fmod(a, b) if dtypes.is_float(a.dtype) else a.fmod(divisor(a, b))


def remainder(a: Tensor, b: Tensor) -> Tensor:
    return remainders.remainder(a, b) if dtypes.is_float(a.dtype) else a % divisor(a, b)


def rounding_to(dtype: DType):
    """What a half type's every step is rounded by, in the dtype it is computed in."""
    return lambda x: x.cast(dtype).cast(x.dtype)


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar, lifts=("other",))
def floor_divide(a, b, *, meta):
    dtype = meta[0].tiny
    x, y = exact_numbers(dtype, a, b)
    if not dtypes.is_float(dtype):
        return x // divisor(x, y)
    is_whole = isinstance(b, Tensor) and b.ndim > 0
    return remainders.floor_divide(x, y, rounding_to(dtype)) if is_whole else remainders.floor_divide(x, y)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode, lifts=("other",))
def divide_with_mode(a, b, *, meta, rounding_mode=None):
    """A quotient of half types is rounded before it is truncated, but not one by a number."""
    dtype = meta[0].tiny
    if rounding_mode == "floor":
        return floor_divide(a, b, meta=meta)
    x, y = exact_numbers(dtype, a, b)
    if rounding_mode is None:
        return x / y
    if not dtypes.is_float(dtype):
        return x.div(divisor(x, y), rounding_mode="trunc")
    quotient = x / y
    return (rounding_to(dtype)(quotient) if isinstance(b, Tensor) and b.ndim else quotient).trunc()


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
    common = gcd(a, b)
    if a.dtype.itemsize < 4:
        a, b, common = (value.cast(dtypes.int32) for value in (a, b, common))
    return m.absolute(common.eq(0).where(0, a.div(divisor(a, common), rounding_mode="trunc") * b))


@lowers(aten.nextafter.default)
def nextafter(a, b, *, meta):
    """One step in the integer order of the bits, which are those of the dtype itself."""
    dtype = meta[0].tiny
    a, b = operands(dtype, a, b)
    integer = m.float_bits(a.dtype)
    bits = a.bitcast(integer)
    x, y = operands(widen(dtype), a, b)
    away = (x < y) ^ (x < 0)
    step = away.where(bits + 1, bits - 1).cast(integer).bitcast(dtype)
    smallest = constant(1, integer).bitcast(dtype)
    step = x.eq(0).where(m.copysign(smallest.expand(step.shape), b.expand(step.shape)), step)
    return (x.isnan() | y.isnan()).where(constant(m.NAN, dtype), x.eq(y).where(b, step))


def log_add(a: Tensor, b: Tensor) -> Tensor:
    """log(e**a + e**b)"""
    return _above_the_larger(a, b, lambda gap: e.log1p(e.exp(gap)))


def log_add_of_two(a: Tensor, b: Tensor) -> Tensor:
    """log2(2**a + 2**b)"""
    return _above_the_larger(a, b, lambda gap: e.log1p(e.exp2(gap)) * (1 / math.log(2)))


def _above_the_larger(a: Tensor, b: Tensor, rest) -> Tensor:
    return (a.eq(b) & m.absolute(a).eq(m.INF)).where(a, m.maximum(a, b) + rest(-m.absolute(a - b)))


def register_times_log(overloads, log) -> None:
    """x * log(y), where zero times anything but nan is zero. The logarithm of a half type is rounded."""

    @lowers(*overloads)
    def times_log(x, y, *, meta):
        x, y = rounded_operands(meta[0].tiny, x, y)
        product = x * rounding_to(meta[0].tiny)(log(y))
        return y.isnan().where(m.NAN, x.eq(0).where(0.0, product))


def overloads(op, *names: str) -> tuple:
    return tuple(getattr(op, name) for name in names)


BINARY = {
    overloads(aten.fmod, "Tensor", "Scalar"): fmod,
    overloads(aten.remainder, "Tensor", "Scalar", "Scalar_Tensor"): remainder,
    overloads(aten.copysign, "Tensor", "Scalar"): m.copysign,
    (aten.logaddexp.default,): log_add,
    (aten.logaddexp2.default,): log_add_of_two,
    (aten.gcd.default,): gcd,
    (aten.lcm.default,): lcm,
    (aten.heaviside.default,): lambda a, b: a.eq(0).where(b, (a > 0).cast(a.dtype)),
    (
        *overloads(aten.bitwise_left_shift, "Tensor", "Tensor_Scalar", "Scalar_Tensor"),
        *overloads(aten.__lshift__, "Tensor", "Scalar"),
    ): shift_left,
    (
        *overloads(aten.bitwise_right_shift, "Tensor", "Tensor_Scalar", "Scalar_Tensor"),
        *overloads(aten.__rshift__, "Tensor", "Scalar"),
    ): shift_right,
    (aten.ldexp.Tensor,): lambda a, b: a * e.exp2(b),
}
for _overloads, _compute in BINARY.items():
    register_binary(_overloads, _compute)
register_times_log(overloads(aten.xlogy, "Tensor", "Scalar_Self", "Scalar_Other"), e.log)
register_times_log(overloads(aten.special_xlog1py, "default", "self_scalar", "other_scalar"), e.log1p)


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
