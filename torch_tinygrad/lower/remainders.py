"""Remainders of floats, exact however large the quotient is, and the quotients that PyTorch makes of them."""

from __future__ import annotations

import math

from tinygrad import Tensor, dtypes

from ..kernels.arrays import fused, zeros
from ..kernels.loops import Loops, Value, run_each
from . import maths as m
from .maths import fma

# Digits of a quotient that one step takes off: its product with the divisor is exact.
STEP = {dtypes.float32: 28, dtypes.float64: 51}
# Exponents of float32 lie this far apart at most.
FARTHEST = 127 + 149


def _off(rest, step):
    """`rest` less the whole multiples of `step` in it."""
    quotient = (rest / step).trunc()
    rest = fma(-quotient, step, rest) if isinstance(rest, Tensor) else fused(-quotient, step, rest)
    rest = (rest < 0).where(rest + step, rest)
    return (rest < step).where(rest, rest - step)


def _of_single(size: Tensor, step: Tensor) -> Tensor:
    """In float64, where all multiples of the divisor that are needed have room."""
    size, step = size.cast(dtypes.float64), step.cast(dtypes.float64)
    digits = STEP[dtypes.float32]
    for place in range(math.ceil(FARTHEST / digits), -1, -1):
        size = _off(size, step * 2.0 ** (digits * place))
    return size.cast(dtypes.float32)


def _of_double(size: Tensor, step: Tensor) -> Tensor:
    """One turn for quotients of up to 51 digits, as most are; in a kernel with loops, as some take forty."""
    shape = tuple(int(s) for s in (size + step).shape)
    digits = 2.0 ** STEP[dtypes.float64]

    def body(k: Loops, out: Value, size: Value, step: Value) -> None:
        least = k.load(step, k.problem)
        rest, multiple = k.variable(k.load(size, k.problem), out.dtype), k.variable(least, out.dtype)
        last = k.variable(least, out.dtype)

        def has_room() -> Value:
            return (k.value(rest) * (1 / digits) < k.value(multiple)).logical_not()

        with k.repeat(has_room):
            k.set(multiple, has_room().where(k.value(multiple) * digits, k.value(multiple)))
        with k.repeat(lambda: least < k.value(last)):
            k.set(last, k.value(multiple))
            k.set(rest, _off(k.value(rest), k.value(multiple)))
            k.set(multiple, k.value(multiple) * (1 / digits))
        k.store((out, k.problem, k.value(rest)))

    size, step = (t.expand(shape).contiguous() for t in (size, step))
    return run_each("fmod_by_digits", body, zeros(shape, size.dtype), size, step)


def _digits(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of a float32 that is not negative: its 24 digits as an integer, and the exponent that they stand before."""
    bits = x.bitcast(dtypes.uint32)
    exponent = bits >> 23
    first = (exponent > 0).where(1 << 23, 0).cast(dtypes.uint32)
    return (bits & 0x7FFFFF) + first, exponent.maximum(1).cast(dtypes.int32)


def _of_digits(size: Tensor, step: Tensor) -> Tensor:
    """Of float32 on devices without float64, which may round products before they are added to: with integers, eight
    digits of the quotient a turn."""
    size, step = (t.expand((size + step).shape).contiguous() for t in (size, step))
    (digits, place), (by, least) = _digits(size), _digits(step)
    away = (place - least).maximum(0)

    def body(k: Loops, out: Value, first: Value, by: Value, turns: Value) -> None:
        divisor = k.load(by, k.problem)
        rest = k.variable(k.load(first, k.problem) % divisor, dtypes.uint32)
        left = k.variable(k.load(turns, k.problem), dtypes.int32)
        with k.repeat(lambda: k.value(left) > 0):
            k.set(rest, (k.value(left) > 0).where(k.value(rest) * 256 % divisor, k.value(rest)))
            k.set(left, k.value(left) - 1)
        k.store((out, k.problem, k.value(rest)))

    first = digits << (away % 8).cast(dtypes.uint32)
    shape = tuple(int(s) for s in size.shape)
    operands = (t.contiguous() for t in (first, by, away // 8))
    rest = run_each("fmod_by_digits", body, zeros(shape, dtypes.uint32), *operands)
    bits = rest.cast(dtypes.float32).bitcast(dtypes.uint32)
    exponent = (bits >> 23).cast(dtypes.int32) + (least - 150)
    normal = (bits & 0x7FFFFF) + (exponent.maximum(0).cast(dtypes.uint32) << 23)
    subnormal = rest << (least - 1).minimum(23).cast(dtypes.uint32)
    value = rest.eq(0).where(0, (exponent > 0).where(normal, subnormal)).cast(dtypes.uint32).bitcast(dtypes.float32)
    return (size < step).where(size, value)


def fmod(a: Tensor, b: Tensor) -> Tensor:
    size, step = m.absolute(a), m.absolute(b)
    plain = (size < m.INF) & (step > 0)
    inner = (plain & (step < m.INF)).where(size, 0.0), (plain & (step < m.INF)).where(step, 1.0)
    if a.dtype == dtypes.float32 and m.widest_float() == dtypes.float64:
        rest = _of_single(*inner)
    elif math.prod((a + b).shape):
        rest = _of_digits(*inner) if a.dtype == dtypes.float32 else _of_double(*inner)
    else:
        rest = size + step
    rest = step.eq(m.INF).where(size, rest)
    return (plain & b.isnan().logical_not()).where(m.copysign(rest, a), m.NAN)


def differ_in_sign(rest: Tensor, b: Tensor) -> Tensor:
    return rest.ne(0) & ((rest < 0) ^ (b < 0))


def remainder(a: Tensor, b: Tensor) -> Tensor:
    rest = fmod(a, b)
    return differ_in_sign(rest, b).where(rest + b, rest)


def floor_divide(a: Tensor, b: Tensor, rounded=lambda x: x) -> Tensor:
    """As the CPU computes it, which rounds each step of a half type."""
    rest = rounded(fmod(a, b))
    quotient = rounded(rounded(a - rest) / b)
    quotient = differ_in_sign(rest, b).where(rounded(quotient - 1.0), quotient)
    whole = m.floor(quotient)
    whole = (rounded(quotient - whole) > 0.5).where(rounded(whole + 1.0), whole)
    whole = quotient.eq(0).where(m.copysign(m.constant(0.0, a.dtype).expand((a / b).shape), a / b), whole)
    return b.eq(0).where(a / b, whole)
