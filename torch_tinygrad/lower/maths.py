"""Numbers as PyTorch computes them: operand preparation shared by the pointwise families, and the elementary functions
whose plain tinygrad forms lose accuracy or mishandle nan."""

from __future__ import annotations

import math

from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

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


def times_zero(x: Tensor) -> Tensor:
    """x * 0 as floats have it, nan for nan and infinity: tinygrad folds a product with the constant 0."""
    return (absolute(x) < INF).where(0.0, NAN).cast(x.dtype) if dtypes.is_float(x.dtype) else x * 0


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


def polynomial(x: Tensor, coefficients: list[float]) -> Tensor:
    """Horner's scheme, highest power first."""
    total = constant(coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
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


# exp(r) - 1 - r over r*r for |r| <= ln(2)/2, highest power first.
EXP_TAIL = [1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5]
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440054690583e-4


def _reduced(x: Tensor) -> tuple[Tensor, Tensor]:
    """n and r with x = n*ln(2) + r and |r| about ln(2)/2 at most."""
    scaled = x * (1 / math.log(2))
    n = (scaled + (x < 0).where(-0.5, 0.5)).trunc()
    return n, (x - n * LN2_HIGH) - times_apart(n, LN2_LOW)


def times_apart(x: Tensor, number: float) -> Tensor:
    """x * number, hidden behind a select: tinygrad merges y + x*a + x*b into y + x*(a+b), which undoes splitting a
    constant into parts. |x| is below 2**30."""
    return x * (x < 2.0**30).where(number, 0.0).cast(x.dtype)


def exp(x: Tensor) -> Tensor:
    """e**x; in float32 with a two-step reduction, since exp2(x * log2(e)) loses digits in proportion to |x|."""
    if x.dtype != dtypes.float32:
        return x.exp()
    bounded = (x < -104.0).where(-104.0, (x > 89.0).where(89.0, x))
    n, r = _reduced(bounded)
    power = scale(polynomial(r, EXP_TAIL) * (r * r) + r + 1.0, n.cast(dtypes.int32))
    # stated, since tinygrad may multiply a later factor in before the scale overflows
    return (x > 88.7228394).where(INF, power)


def fast_exp(x: Tensor) -> Tensor:
    """e**x with an error that grows with |x|: for arguments <= 0 and results that are summed."""
    return x.exp()


def expm1(x: Tensor) -> Tensor:
    small = absolute(x) < 0.35
    near = small.where(x, 0.0)
    terms = [1 / math.factorial(k) for k in range(18 if x.dtype == dtypes.float64 else 10, 0, -1)]
    return small.where(near * polynomial(near, terms), exp(x) - 1.0)


def log1p(x: Tensor) -> Tensor:
    """log(1+x), by the series of 2*atanh(x / (x + 2)) where 1+x would round x away."""
    series = absolute(x) < 0.25
    near = series.where(x, 0.0)
    ratio = near / (near + 2.0)
    square = ratio * ratio
    terms = [1 / (2 * k + 1) for k in range(12 if x.dtype == dtypes.float64 else 6, -1, -1)]
    return series.where(2.0 * ratio * polynomial(square, terms), (1.0 + x).log())


def sigmoid(x: Tensor) -> Tensor:
    return (1.0 + exp(-x)).reciprocal()


def tanh(x: Tensor) -> Tensor:
    size = absolute(x)
    far = 1.0 - 2.0 / (exp(2.0 * (size > 20.0).where(20.0, size)) + 1.0)
    square = x * x
    # the odd rational approximation of tanh below 0.625 (Cephes)
    p = polynomial(square, [-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3])
    q = polynomial(square, [1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3])
    return (size < 0.625).where(x + x * square * (p / q), copysign(far, x))


def cos(x: Tensor) -> Tensor:
    """1 - 2*sin(x/2)**2: shifting x by pi/2 instead would round large arguments."""
    half = (x * 0.5).sin()
    return 1.0 - 2.0 * half * half


def softplus(x: Tensor) -> Tensor:
    """log(1 + e**x) without overflow."""
    return (x > 0).where(x, 0.0) + log1p(exp(-absolute(x)))


def sin_pi(x: Tensor) -> Tensor:
    """sin(pi * x) for |x| <= 1, by its series after folding into [-1/2, 1/2]."""
    folded = (x > 0.5).where(1.0 - x, (x < -0.5).where(-1.0 - x, x))
    count = 11 if x.dtype == dtypes.float64 else 7
    terms = [(-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(count - 1, -1, -1)]
    return folded * polynomial(folded * folded, terms)


def power_size(size: Tensor, y: Tensor) -> Tensor:
    """size**y for size >= 0. float32 takes log2 apart into an integer and a small part and y into 12 digits and the
    rest, so that the exponent's whole part is exact however large it is."""
    if size.dtype != dtypes.float32:
        return (y * size.log2()).exp2()
    tiny = size < 2.0**-126
    bits = tiny.where(size * 2.0**24, size).bitcast(dtypes.int32)
    exponent = (bits - 0x3F3504F3) >> 23
    log = (bits - exponent * 2**23).bitcast(dtypes.float32).log2()
    exponent = tiny.where(exponent - 24, exponent).cast(dtypes.float32)
    plain = y * size.eq(0).where(-INF, (size < INF).where(exponent + log, size))
    upper = (y.bitcast(dtypes.int32) & -4096).bitcast(dtypes.float32)
    large, small = upper * exponent, (y - upper) * exponent + y * log
    exact = absolute(plain) < 200.0
    whole = exact.where(round_even(large + small), 0.0)
    return scale(exact.where((large - whole) + small, plain).exp2(), whole.cast(dtypes.int32))
