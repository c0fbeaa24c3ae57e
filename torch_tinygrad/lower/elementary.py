"""Exponentials and logarithms within 2 units in the last place over the whole range of float32 and float64.

float32 is computed in float32, where kernels are vectorised to the processor's full width: these functions are in every
network. Coefficients are those of Taylor's series, of as many terms as the dtype's digits ask for."""

from __future__ import annotations

import math

from tinygrad import Tensor, dtypes

from .maths import (
    INF,
    NAN,
    absolute,
    as_int,
    constant,
    copysign,
    float_bits,
    fma,
    nearest,
    polynomial,
    power_of_two,
    scale,
    widest_float,
)
from .pairs import Pair, exact_product, exact_sum, joined, number, single

# Each as a float of the dtype, and the rest.
LN2 = {
    dtypes.float32: (0.6931471824645996, -1.9046542121259336e-09),
    dtypes.float64: (0.6931471805599453, 2.3190468138462996e-17),
}
LOG2_E = {
    dtypes.float32: (1.4426950216293335, 1.925963033500011e-08),
    dtypes.float64: (1.4426950408889634, 2.0355273740931033e-17),
}
LOG10_E = {
    dtypes.float32: (0.4342944920063019, -1.0103049952192578e-08),
    dtypes.float64: (0.4342944819032518, 1.098319650216765e-17),
}
LOG10_2 = {
    dtypes.float32: (0.3010300099849701, -1.432098883924482e-08),
    dtypes.float64: (0.3010299956639812, -2.8037281277851704e-18),
}
THIRD = {
    dtypes.float32: (0.3333333432674408, -9.934107481068821e-09),
    dtypes.float64: (0.3333333333333333, 1.850371707708594e-17),
}
# Where e**x is too small or too large for the dtype, by a margin; 2**x likewise.
EXP_RANGE = {dtypes.float32: (-104.0, 91.0), dtypes.float64: (-746.0, 712.0)}
EXP2_RANGE = {dtypes.float32: (-151.0, 129.0), dtypes.float64: (-1076.0, 1025.0)}


def is_double(x: Tensor) -> bool:
    return x.dtype == dtypes.float64


def within(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    low, high = bounds
    return (x < low).where(low, (x > high).where(high, x))


def _exp_less_one(r: Tensor) -> Tensor:
    """e**r - 1 for |r| up to ln(2)/2."""
    terms = [1 / math.factorial(k) for k in range(13 if is_double(r) else 7, 1, -1)]
    return fma(r * r, polynomial(r, terms), r)


def _reduced(x: Tensor) -> tuple[Tensor, Tensor]:
    """n and r with x = n*ln(2) + r and |r| about ln(2)/2 at most."""
    high, low = LN2[x.dtype]
    n = nearest(x * LOG2_E[x.dtype][0])
    return n, fma(n, -low, fma(n, -high, x))


def _grown(n: Tensor, less_one: Tensor) -> Tensor:
    return scale(less_one + 1.0, as_int(n))


def exp(x: Tensor) -> Tensor:
    n, r = _reduced(within(x, EXP_RANGE[x.dtype]))
    return _grown(n, _exp_less_one(r))


def half_exp(x: Tensor) -> Tensor:
    """e**x / 2, which overflows later than e**x."""
    n, r = _reduced(within(x, EXP_RANGE[x.dtype]))
    return _grown(n - 1.0, _exp_less_one(r))


def exp_parts(x: Pair, kind: type[Pair] = Pair) -> tuple[Tensor, Pair]:
    """n and m with e**(high + low) = m * 2**n, which `grown` rounds. What m is multiplied by may bring it back
    into the dtype's range."""
    low, high = EXP_RANGE[x.high.dtype]
    bounded = within(x.high, (1.5 * low, 1.5 * high))
    high, low = LN2[bounded.dtype]
    n = nearest(bounded * LOG2_E[bounded.dtype][0])
    # the first difference is exact
    r = kind.sum(fma(n, -high, bounded), fma(n, -low, bounded.eq(x.high).where(x.low, 0.0)))
    terms = [1 / math.factorial(k) for k in range(14 if is_double(bounded) else 8, 1, -1)]
    m = kind.sum(constant(1.0, bounded.dtype), r.high)
    return n, m + kind.of(r.high * r.high * polynomial(r.high, terms), r.low)


def grown(n: Tensor, m: Pair) -> Tensor:
    """m * 2**n, rounded."""
    return scale(m.rounded, as_int(n))


def exp2(x: Tensor) -> Tensor:
    bounded = within(x, EXP2_RANGE[x.dtype])
    n = nearest(bounded)
    rest = bounded - n
    high, low = LN2[x.dtype]
    return _grown(n, _exp_less_one(fma(rest, high, rest * low)))


def expm1(x: Tensor) -> Tensor:
    n, r = _reduced(within(x, EXP_RANGE[x.dtype]))
    less_one = _exp_less_one(r)
    power = power_of_two(as_int(within(n, (-60.0, 60.0))), x.dtype)
    near = n.eq(0).where(less_one, fma(power, less_one, power - 1.0))
    return (n > 60.0).where(_grown(n, less_one), x.eq(0).where(x, near))


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """e and m with x = m * 2**e and m in about [sqrt(1/2), sqrt(2)), for x > 0."""
    integer = float_bits(x.dtype)
    digits, low, tiny = (52, 0x3FE6A09E667F3BCD, 2.0**-1022) if is_double(x) else (23, 0x3F3504F3, 2.0**-126)
    small = x < tiny
    bits = small.where(x * 2.0 ** (digits + 2), x).bitcast(integer)
    e = (bits - constant(low, integer)) >> digits
    m = (bits - (e << digits)).bitcast(x.dtype)
    return (e - small.where(constant(digits + 2, integer), 0)).cast(x.dtype), m


def _log_tail(f: Tensor) -> tuple[Tensor, Tensor]:
    """f*f/2 and t with log(1+f) = f - (f*f/2 - t), for 1+f in [sqrt(1/2), sqrt(2)): the series of 2*atanh(f/(2+f))."""
    s = f / (f + 2.0)
    z = s * s
    terms = [2 / (2 * k + 1) for k in range(10 if is_double(f) else 5, 0, -1)]
    half_square = 0.5 * f * f
    return half_square, s * fma(z, polynomial(z, terms), half_square)


def _at_the_ends(x: Tensor, value: Tensor) -> Tensor:
    """The logarithm, with its values at 0, infinity, nan and below 0."""
    value = (x < INF).where(value, x)
    return (x > 0).where(value, x.eq(0).where(-INF, NAN))


def _log(x: Tensor, correction: Tensor | None = None) -> Tensor:
    e, m = _parts(x)
    high, low = LN2[x.dtype]
    f = m - 1.0
    half_square, tail = _log_tail(f)
    tail = fma(e, low, tail)
    tail = tail if correction is None else tail + correction
    large = exact_product(e, constant(high, x.dtype))
    return large.high + (f - (half_square - (tail + large.low)))


def log(x: Tensor) -> Tensor:
    return _at_the_ends(x, _log(x))


def _log_to_base(x: Tensor, inverse: tuple[float, float], of_two: tuple[float, float]) -> Tensor:
    """From the base's logarithms of e and of two."""
    e, m = _parts(x)
    f = m - 1.0
    half_square, tail = _log_tail(f)
    rest = joined(f, tail - half_square)
    near = exact_product(rest.high, constant(inverse[0], x.dtype))
    whole = exact_product(e, constant(of_two[0], x.dtype))
    large = exact_sum(whole.high, near.high)
    small = fma(rest.high, inverse[1], rest.low * inverse[0]) + fma(e, of_two[1], whole.low)
    return _at_the_ends(x, large.high + (large.low + (near.low + small)))


def log2(x: Tensor) -> Tensor:
    return _log_to_base(x, LOG2_E[x.dtype], (1.0, 0.0))


def log10(x: Tensor) -> Tensor:
    return _log_to_base(x, LOG10_E[x.dtype], LOG10_2[x.dtype])


def log1p(x: Tensor) -> Tensor:
    """Near 0 x itself is the f of the logarithm's series; elsewhere what 1+x rounds away is put back."""
    near = absolute(x) < 0.29
    f = near.where(x, 0.0)
    half_square, tail = _log_tail(f)
    close = f - (half_square - tail)
    total = exact_sum(constant(1.0, x.dtype), x)
    far = _at_the_ends(total.high, _log(total.high, total.low / total.high))
    return near.where(x.eq(0).where(x, close), x.eq(INF).where(INF, far))


def _log_parts(x: Tensor) -> tuple[Tensor, Pair]:
    """e and log(m) with x = m * 2**e for finite x > 0, with some ten more digits than the dtype holds."""
    e, m = _parts(x)
    f = m - 1.0
    s = single(f) / exact_sum(f, constant(2.0, x.dtype))
    z = s * s
    terms = [1 / (2 * k + 1) for k in range(12 if is_double(x) else 6, 1, -1)]
    third = (
        (0.3333333333333333, 1.850371707708594e-17) if is_double(x) else (0.3333333432674408, -9.934107481068821e-09)
    )
    inner = z.high * polynomial(z.high, terms)
    series = z * (number(*third, x.dtype) + single(inner))
    return e, (s + s * series).scaled(2.0)


def log2_pair(x: Tensor) -> Pair:
    e, log_m = _log_parts(x)
    return single(e) + log_m * number(*LOG2_E[x.dtype], x.dtype)


def log_pair(x: Tensor, kind: type[Pair] = Pair) -> Pair:
    if kind is not Pair:
        return kind.single(_log(x))
    e, log_m = _log_parts(x)
    return number(*LN2[x.dtype], x.dtype).times(e) + log_m


def power_size(size: Tensor, y: Tensor) -> Tensor:
    """size**y for size >= 0, as 2**(y * log2(size)): the exponent needs more digits than the result."""
    if size.dtype == dtypes.float32 and widest_float() == dtypes.float64:
        wide, power = size.cast(dtypes.float64), y.cast(dtypes.float64)
        exponent = power * log2(wide)
        return (size.eq(1) | y.eq(0)).where(1.0, exp2(exponent)).cast(dtypes.float32)
    inner = ((size > 0) & (size < INF)).where(size, 1.0)
    log_size = log2_pair(inner)
    bound = 2.0 * EXP2_RANGE[size.dtype][1]
    exponent = exact_product(y, log_size.high)
    beyond = absolute(exponent.high) < bound
    high = beyond.where(exponent.high, 0.0)
    low = beyond.where(fma(y, log_size.low, exponent.low), 0.0)
    whole = nearest(high)
    rest = (high - whole) + low
    ln2_high, ln2_low = LN2[size.dtype]
    power = _grown(whole, _exp_less_one(fma(rest, ln2_high, rest * ln2_low)))
    power = beyond.where(power, (exponent.high > 0).where(INF, 0.0))
    up = (y > 0).where(INF, 0.0)
    ends = size.eq(0).where((y > 0).where(0.0, INF), up)
    power = ((size > 0) & (size < INF)).where(power, ends)
    return (size.isnan() | y.isnan()).where(NAN, y.eq(0).where(1.0, power))


def sigmoid(x: Tensor) -> Tensor:
    """From e**-|x|, which does not overflow."""
    decay = exp(-absolute(x))
    return (x < 0).where(decay, 1.0) / (1.0 + decay)


def tanh(x: Tensor) -> Tensor:
    """expm1(2x) / (expm1(2x) + 2), from |x|."""
    size = absolute(x)
    bound = 20.0 if is_double(x) else 10.0
    n, r = _reduced(2.0 * (size > bound).where(bound, size))
    less_one = _exp_less_one(r)
    power = power_of_two(as_int(n), x.dtype)
    grown = n.eq(0).where(less_one, fma(power, less_one, power - 1.0))
    return x.isnan().where(x, copysign((size > bound).where(1.0, grown / (grown + 2.0)), x))
