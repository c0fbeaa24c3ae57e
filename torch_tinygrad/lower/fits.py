"""Smooth functions as polynomials to all digits of float64 and some more: mpmath, which PyTorch brings along, computes
the coefficients, once for a process that needs them."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable

from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

from .maths import constant, fma
from .pairs import Pair

# A coefficient as a float64, and the rest as another.
Number = tuple[float, float]
DIGITS = 45  # decimal ones, of values and coefficients
NODES = 56
SMALLEST = 2.0**-62  # what is left out, as a part of the largest


@functools.cache
def fitted(function: Callable, low: float, high: float) -> tuple[Number, ...]:
    """Coefficients, lowest power first, of the polynomial in t that is `function(mp, x)` for x = low to high as t goes
    from -1 to 1: Chebyshev's series."""
    from mpmath import mp

    with mp.workdps(DIGITS):
        start, half = mp.mpf(low), (mp.mpf(high) - mp.mpf(low)) / 2
        cosines = [mp.cos(mp.pi * k / (2 * NODES)) for k in range(4 * NODES)]
        values = [function(mp, start + half * (cosines[2 * k + 1] + 1)) for k in range(NODES)]
        series = [
            sum(v * cosines[j * (2 * k + 1) % (4 * NODES)] for k, v in enumerate(values)) * 2 / NODES
            for j in range(NODES)
        ]
        series[0] /= 2
        least = max(map(abs, series)) * SMALLEST
        while abs(series[-1]) < least:
            series.pop()
        return tuple(split(mp, c) for c in _powers(series))


def _powers(series: list) -> list:
    """Chebyshev's series as one of powers."""
    total, before, now = [0] * len(series), [1], [0, 1]
    total[0] = series[0]
    for coefficient in series[1:]:
        for power, factor in enumerate(now):
            total[power] += coefficient * factor
        before, now = now, [a - b for a, b in zip([0, *(2 * f for f in now)], [*before, 0, 0], strict=True)]
    return total


def split(mp, value) -> Number:
    high = float(value)
    return high, float(value - mp.mpf(high))


@functools.cache
def series(term: Callable, count: int) -> tuple[Number, ...]:
    """`term(mp, k)` for k below `count`."""
    from mpmath import mp

    with mp.workdps(DIGITS):
        return tuple(split(mp, term(mp, k)) for k in range(count))


@functools.cache
def exactly(value: Callable) -> Number:
    """`value(mp)` in two floats."""
    from mpmath import mp

    with mp.workdps(DIGITS):
        return split(mp, value(mp))


def number(value: Number, dtype: DType, kind: type[Pair] = Pair) -> Pair:
    """Its digits as far as two numbers of the dtype have them."""
    if dtype == dtypes.float64:
        return kind.of(constant(value[0], dtype), constant(value[1], dtype))
    (high,) = struct.unpack("f", struct.pack("f", value[0]))
    return kind.of(constant(high, dtype), constant(value[0] - high + value[1], dtype))


def evaluated(t: Tensor | Pair, coefficients: tuple[Number, ...], kind: type[Pair], steps: int = 3) -> Pair:
    """Horner's scheme, the last steps of it with the digits of a pair."""
    factor = t.high if isinstance(t, Pair) else t
    steps = min(steps, len(coefficients) - 1) if kind is Pair else 1
    total = constant(coefficients[-1][0], factor.dtype)
    for high, _ in coefficients[-2 : steps - 1 : -1]:
        total = fma(total, factor, high)
    pair = kind.single(total)
    for coefficient in coefficients[steps - 1 :: -1]:
        product = pair * t if isinstance(t, Pair) else pair.times(t)
        pair = product + number(coefficient, factor.dtype, kind)
    return pair
