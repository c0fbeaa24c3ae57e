"""Numbers as PyTorch computes them: operand preparation shared by the pointwise families, comparisons, rounding and the
parts of a float. Functions such as exp and sin: `elementary.py`."""

from __future__ import annotations

import math

from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

from torch_tinygrad.kernels.arrays import fused
from torch_tinygrad.lower.registry import is_number
from torch_tinygrad.target import target

INF, NAN = math.inf, math.nan


def widen(dtype: DType) -> DType:
    """The dtype PyTorch computes in: half types compute in float32."""
    return dtypes.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else dtype


def widest_float() -> DType:
    """float64 where the device has it, for intermediate results that must be exact."""
    return target().widest_float


def constant(number, dtype: DType, shape: tuple[int, ...] = ()) -> Tensor:
    """A constant expression (no buffer); integers wrap into the dtype as in C."""
    if dtypes.is_int(dtype):
        number, bits = int(number), dtype.bitsize
        number &= (1 << bits) - 1
        if not dtypes.is_unsigned(dtype) and number >> (bits - 1):
            number -= 1 << bits
    elif dtype == dtypes.bool:
        number = bool(number)
    else:
        number = float(number)
    return Tensor.full(shape, number, dtype=dtype, buffer=False)


def operand(value, dtype: DType) -> Tensor:
    """A tensor or number as a tensor of `dtype`."""
    return value.cast(dtype) if isinstance(value, Tensor) else constant(value, dtype)


def operands(dtype: DType, *values) -> list[Tensor]:
    return [operand(value, dtype) for value in values]


def index_range(count: int, dtype: DType = dtypes.int32) -> Tensor:
    return Tensor.arange(count, dtype=dtype) if count else Tensor.full((0,), 0, dtype=dtype, buffer=False)


def is_float(value) -> bool:
    return isinstance(value, float) or (isinstance(value, Tensor) and dtypes.is_float(value.dtype))


def is_zero(value) -> bool:
    return is_number(value) and value == 0


# Comparisons: tinygrad's >= and <= are negated < and so true for nan.
def greater_equal(a: Tensor, b: Tensor) -> Tensor:
    return (b < a) | a.eq(b) if dtypes.is_float(a.dtype) else (a < b).logical_not()


def less_equal(a: Tensor, b: Tensor) -> Tensor:
    return greater_equal(b, a)


def maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger, nan if either is nan."""
    return ((a < b) | b.isnan()).where(b, a) if dtypes.is_float(a.dtype) else a.maximum(b)


def minimum(a: Tensor, b: Tensor) -> Tensor:
    return ((b < a) | b.isnan()).where(b, a) if dtypes.is_float(a.dtype) else (b < a).where(b, a)


def absolute(x: Tensor) -> Tensor:
    """|x| by clearing the sign bit, so that -0.0 becomes 0.0."""
    if dtypes.is_unsigned(x.dtype) or x.dtype == dtypes.bool or 0 in x.shape:
        return x
    if dtypes.is_float(x.dtype):
        integer = float_bits(x.dtype)
        # the mask has a dtype of its own, without which tinygrad folds a constant's bits into a narrower integer
        return (x.bitcast(integer) & constant(integer.max, integer)).bitcast(x.dtype)
    return (x < 0).where(-x, x)


def float_bits(dtype: DType) -> DType:
    """The signed integer dtype of a float dtype's width."""
    return {2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}[dtype.itemsize]


def sign_bit(x: Tensor) -> Tensor:
    return x.bitcast(float_bits(x.dtype)) < 0 if dtypes.is_float(x.dtype) else x < 0


def copysign(magnitude: Tensor, sign: Tensor) -> Tensor:
    bits = {2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}[magnitude.dtype.itemsize]
    top = 1 << (bits.bitsize - 1)
    return ((magnitude.bitcast(bits) & (top - 1)) | (sign.bitcast(bits) & top)).bitcast(magnitude.dtype)


def fma(a: Tensor, b: Tensor | float, c: Tensor | float) -> Tensor:
    """a * b + c, rounded once. Nothing else is: see `corrections/arithmetic.py`."""
    return fused(a, operand(b, a.dtype), operand(c, a.dtype))


def polynomial(x: Tensor, coefficients: list[float]) -> Tensor:
    """Horner's scheme, highest power first."""
    total = constant(coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        total = fma(total, x, coefficient)
    return total


def power_of_two(exponent: Tensor, dtype: DType) -> Tensor:
    """2**exponent for an integer tensor, in two factors so that subnormal results and overflow come out right."""
    integer = float_bits(dtype)
    mantissa, bias = (23, 127) if dtype == dtypes.float32 else (52, 1023)
    return ((exponent.cast(integer) + bias) * (1 << mantissa)).bitcast(dtype)


def scale(x: Tensor, exponent: Tensor) -> Tensor:
    """x * 2**exponent for exponents within twice the dtype's range."""
    half = exponent >> 1
    return x * power_of_two(half, x.dtype) * power_of_two(exponent - half, x.dtype)


def round_even(x: Tensor) -> Tensor:
    """To the nearest integer, halves to even, as a float; -0.0 and infinities are kept."""
    limit = 2.0 ** (23 if x.dtype == dtypes.float32 else 52)
    size = absolute(x)
    whole = size.trunc()
    rest = size - whole
    odd = (whole * 0.5).trunc() * 2 != whole
    up = (rest > 0.5) | (rest.eq(0.5) & odd)
    return (size < limit).where(copysign(up.where(whole + 1, whole), x), x)


def floor(x: Tensor) -> Tensor:
    down = x.trunc()
    return (x < down).where(down - 1, down)


def nearest(x: Tensor) -> Tensor:
    """The nearest integer as a float, where it has few digits; either of two that are equally near."""
    if target().regroups:
        return (x + (x < 0).where(-0.5, 0.5)).trunc()
    magic = 1.5 * 2.0 ** (23 if x.dtype == dtypes.float32 else 52)
    return (x + magic) - magic


def as_int(n: Tensor) -> Tensor:
    """A small whole number as an int32. Its bits are taken, as `nearest` leaves them: a conversion asks first whether
    there is such an integer."""
    if target().regroups:
        return n.cast(dtypes.int32)
    if n.dtype == dtypes.float64:
        return (n + 1.5 * 2.0**52).bitcast(dtypes.int64).cast(dtypes.int32)
    return (n + 1.5 * 2.0**23).bitcast(dtypes.int32) - 0x4B400000


def sin_pi(x: Tensor) -> Tensor:
    """sin(pi * x) for |x| <= 1, by its series after folding into [-1/2, 1/2]."""
    folded = (x > 0.5).where(1.0 - x, (x < -0.5).where(-1.0 - x, x))
    count = 11 if x.dtype == dtypes.float64 else 7
    terms = [(-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(count - 1, -1, -1)]
    return folded * polynomial(folded * folded, terms)
