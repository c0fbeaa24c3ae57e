"""64-bit integers as pairs of 32-bit ones, where the hardware has none longer: what tinygrad's own rules for them get
wrong, or make too long to compile."""

from __future__ import annotations

from collections.abc import Callable

from tinygrad.codegen.decomp import dtype as decompositions
from tinygrad.dtype import DType, dtypes
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat

from .registry import correction, wrap

Pair = tuple[UOp, UOp]  # the lower half, then the upper one

WORD, FLOAT = dtypes.uint32, dtypes.float32
_plain: Callable = decompositions.l2i


@correction(
    "0.14.0", "device/test_own_memory.py::test_conversions_of_large_floats_to_integers_are_exact", device="WEBGPU"
)
def long_integers_are_exact() -> None:
    """Quotients take a minute to compile, a digit at a time; floats become integers of 32 bits at most; integers become
    floats that are rounded twice."""
    wrap(decompositions, "l2i", lambda plain: _halves)


@correction(
    "0.14.0", "aliasing/test_setitem.py::test_appending_to_a_key_value_cache_moves_one_position", device="WEBGPU"
)
def indices_are_short() -> None:
    """tinygrad counts in 64 bits where a sum might not fit 32. An index of a buffer does."""
    first = PatternMatcher([(UPat((Ops.INDEX, Ops.SHRINK), name="x"), _short_index)])
    decompositions.pm_long_decomp = first + decompositions.pm_long_decomp


def _on_pairs(op: Ops, *words: UOp) -> Pair:
    return _plain(op, WORD, *words)


def _magnitude(low: UOp, high: UOp, is_signed: bool) -> tuple[UOp | None, UOp, UOp]:
    """Whether the number is negative, and its absolute value."""
    low, high = low.bitcast(WORD), high.bitcast(WORD)
    if not is_signed:
        return None, low, high
    negative = high.bitcast(dtypes.int32) < 0
    return negative, *_chosen(negative, _on_pairs(Ops.NEG, low, high), (low, high))


def _chosen(condition: UOp, a: Pair, b: Pair) -> Pair:
    return condition.where(a[0], b[0]), condition.where(a[1], b[1])


def _from_float(value: UOp, half: DType) -> Pair:
    """Towards zero. The lower half is what the upper one leaves of the number; tinygrad's, what a conversion to 32 bits
    gives, which ends there. What has no integer, as nan, gives the least one, as on the CPU."""
    value = value.cast(FLOAT) if value.dtype.itemsize < 4 else value
    negative = value < 0
    size = negative.where(-value, value)
    pair = _whole(size)
    is_signed = half == dtypes.int32
    none = pair[0].const_like(0), pair[1].const_like(1 << 31 if is_signed else 0)
    pair = _chosen(size < 2.0 ** (63 if is_signed else 64), _chosen(negative, _on_pairs(Ops.NEG, *pair), pair), none)
    return pair[0].bitcast(half), pair[1].bitcast(half)


def _whole(value: UOp) -> Pair:
    """Of a float that is not negative."""
    high = (value * 2.0**-32).cast(WORD)
    return (value - high.cast(value.dtype) * 2.0**32).cast(WORD), high


def _to_float(low: UOp, high: UOp, result: DType) -> UOp:
    """Rounded once: the number's upper 32 bits, of which the last stands for all below, and their exponent. tinygrad
    rounds each half, and their sum."""
    negative, low, high = _magnitude(low, high, low.dtype == dtypes.int32)
    exponent = (high.cast(FLOAT).bitcast(WORD) >> 23).cast(dtypes.int32) - 126
    places = (high.eq(0)).where(exponent.const_like(0), exponent)
    top = _on_pairs(Ops.SHR, low, high, places.cast(WORD))[0]
    again = _on_pairs(Ops.SHL, top, top.const_like(0), places.cast(WORD))
    inexact = again[0].ne(low) | again[1].ne(high)
    scale = ((places + 127) << 23).bitcast(FLOAT)
    value = (top | inexact.cast(WORD)).cast(FLOAT) * scale
    return (value if negative is None else negative.where(-value, value)).cast(result)


def _divided(op: Ops, half: DType, low: UOp, high: UOp, low_by: UOp, high_by: UOp) -> Pair:
    """Each step divides in single precision, rounded down, and goes on with what is left: 20 binary digits a step.
    tinygrad takes them one by one, which makes kernels that take a minute to compile."""
    is_signed = half == dtypes.int32
    negative, *rest = _magnitude(low, high, is_signed)
    negative_by, *by = _magnitude(low_by, high_by, is_signed)
    left: Pair = (rest[0], rest[1])
    quotient: Pair = (left[0].const_like(0), left[0].const_like(0))

    def approximate(pair) -> UOp:
        return pair[1].cast(FLOAT) * 2.0**32 + pair[0].cast(FLOAT)

    def step(digits: Pair) -> None:
        nonlocal left, quotient
        left = _on_pairs(Ops.SUB, *left, *_on_pairs(Ops.MUL, *digits, *by))
        quotient = _on_pairs(Ops.ADD, *quotient, *digits)

    for _ in range(4):
        step(_whole(approximate(left) / approximate(by) * (1 - 2.0**-20)))
    for _ in range(2):
        more = _plain(Ops.CMPLT, WORD, *left, *by).logical_not()
        step((more.cast(WORD), left[0].const_like(0)))
    if negative is not None:
        sign = negative if op is Ops.CMOD else negative ^ negative_by
        left, quotient = (_chosen(sign, _on_pairs(Ops.NEG, *pair), pair) for pair in (left, quotient))
    low, high = left if op is Ops.CMOD else quotient
    return low.bitcast(half), high.bitcast(half)


def _halves(op: Ops, dt: DType, *words: UOp):
    if op in (Ops.CDIV, Ops.CMOD):
        return _divided(op, dt, *words)
    if op is Ops.CAST and dt in decompositions.l2i_dt and words[0].dtype in dtypes.floats:
        return _from_float(words[0], decompositions.l2i_dt[dt])
    if op is Ops.CAST and dt in dtypes.floats:
        return _to_float(words[0], words[1], dt)
    return _plain(op, dt, *words)


def _short_index(x: UOp) -> UOp | None:
    index = x.src[1]
    if index.dtype not in decompositions.l2i_dt or index.tag is not None:
        return None
    return x.replace(src=(x.src[0], index.cast(dtypes.int32), *x.src[2:]))
