"""Sine, cosine and tangent of any argument: what is left of an angle after whole quarter turns, exactly.

x * 2/pi is summed up from products of x with pieces of 2/pi, each short enough that nothing is rounded; of each only
what lies above whole turns counts. Pieces that give whole turns alone are left out: which ones they are depends on the
size of x. So there is one way for small and huge arguments, without a table in memory and without branches. Devices
without float64, some of which round as they like, multiply the digits as integers."""

from __future__ import annotations

import math

from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

from . import maths as m
from .fits import evaluated, series
from .maths import constant, fma, nearest, polynomial
from .pairs import Pair, exact_product, exact_sum, joined, number, single

# The digits of 2/pi, 1200 bits after the point.
TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E006492EEA09D1921CFE1DEB1CB129A73EE88235F52EBB4484E99C7026B45F7E413991D639835339F49C845F8BBDF9283B1FF897FFDE05980FEF2F118B5A0A6D1F6D367ECF27CB09B74F463F669E5FEA2D7527BAC7EBE5F17B3D0739F78A5292EA6BFB5FB11F8D5D0856033046FC7B  # noqa: E501
DIGITS = 1200
HALF_PI = (1.5707963267948966, 6.123233995736766e-17)
PI_LOW = 1.2246467991473532e-16
PIECES = 5
# The biased exponent of a float32 whose 24 digits, as an integer, count eighths of 2**-32 turns.
FIRST = 120


def _piece(width: int, k: int) -> float:
    """The k-th piece of 2/pi as a fraction below 1."""
    return ((TWO_OVER_PI >> (DIGITS - width * (k + 1))) & ((1 << width) - 1)) * 2.0**-width


def _window(size: Tensor, width: int, digits: int, largest: int) -> tuple[Tensor, list[Tensor]]:
    """A factor, a power of two, and pieces of 2/pi to multiply `size` with: those before them give whole turns.
    `digits` is how many `size` has, `largest` the exponent that all sizes are below."""
    first = digits + 1 + width  # from 2**first on, the first piece gives whole turns
    count = max(math.ceil((largest - first) / width), 0) + 1
    past = [m.greater_equal(size, constant(2.0 ** (first + width * k), size.dtype)) for k in range(count - 1)]

    def chosen(numbers: list[float]) -> Tensor:
        value = constant(numbers[0], size.dtype)
        for condition, following in zip(past, numbers[1:], strict=True):
            value = condition.where(following, value)
        return value

    factor = chosen([2.0 ** (-width * k) for k in range(count)])
    pieces = [chosen([_piece(width, i + k) * 2.0 ** (-width * i) for k in range(count)]) for i in range(PIECES)]
    return factor, pieces


def _above_turns(x: Tensor) -> Tensor:
    """x less a multiple of 4, exactly."""
    return fma((x * 0.25).trunc(), -4.0, x)


def _reduced_single(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quarter turns and the rest of a float32, in float64: its 24 digits times 26 are exact."""
    wide = x.cast(dtypes.float64)
    factor, pieces = _window(m.absolute(wide), 26, 24, 128)
    scaled = wide * factor
    terms = [scaled * piece for piece in pieces]
    # The first two have at most 53 digits together, below 8; the others are small.
    total = _above_turns(terms[0]) + _above_turns(terms[1])
    quarters = nearest(total)
    rest = exact_sum(total - quarters, terms[2])
    rest = joined(rest.high, rest.low + (terms[3] + terms[4]))
    return quarters, rest.high * HALF_PI[0]


def _reduced_double(x: Tensor) -> tuple[Tensor, Pair]:
    factor, pieces = _window(m.absolute(x), 50, 53, 1024)
    scaled = x * factor
    products = [exact_product(scaled, piece) for piece in pieces]
    terms = [_above_turns(products[0].high), _above_turns(products[1].high), _above_turns(products[0].low)]
    terms += [_above_turns(products[2].high), products[1].low]
    terms += [products[3].high, products[2].low, products[4].high + products[3].low]
    total, lost = terms[0], []
    for term in terms[1:]:
        step = exact_sum(total, term)
        total = step.high
        lost.append(step.low)
    quarters = nearest(total)
    rest = single(total - quarters)
    for term in lost:
        step = exact_sum(rest.high, term)
        rest = Pair(step.high, rest.low + step.low)
    return quarters, joined(rest.high, rest.low) * number(*HALF_PI, x.dtype)


def _digits_from(begin: Tensor) -> list[Tensor]:
    """96 digits of 2/pi as words, the highest first; they begin at most 159 behind 32 zeros."""
    word = begin.dtype
    known = [constant((TWO_OVER_PI >> (DIGITS - 32 * k)) & 0xFFFFFFFF, word) for k in range(8)]
    row, shift = begin >> 5, begin & 31
    words = known[:4]
    for k in range(1, 5):
        here = row.eq(k)
        words = [here.where(other, value) for other, value in zip(known[k:], words, strict=False)]
    return [(a << shift) | ((b >> 1) >> (31 - shift)) for a, b in zip(words, words[1:], strict=False)]


def _product(factor: Tensor, words: list[Tensor]) -> list[Tensor]:
    """Modulo 2**96, eight digits at a time: those of a float32's 24 digits and eight more fit a word."""
    carried, product = constant(0, factor.dtype), []
    for word in reversed(words):
        total = constant(0, factor.dtype)
        for place in range(0, 32, 8):
            carried = factor * ((word >> place) & 255) + (carried >> 8)
            total = total | ((carried & 255) << place)
        product.append(total)
    return product[::-1]


def _reduced_by_words(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of a float32, in integers. The digits of 2/pi begin where the product counts turns, which leaves two of it for
    the quarters; what is left is at least 2**-30 of one."""
    bits = m.absolute(x).bitcast(dtypes.uint32)
    exponent = bits >> 23
    begin = (exponent < FIRST).where(constant(0, bits.dtype), exponent - FIRST)
    high, middle, low = _product((bits & 0x7FFFFF) | 0x800000, _digits_from(begin))
    quarters = ((high + (1 << 29)) >> 30) & 3
    rest = [(high << 2) | (middle >> 30), (middle << 2) | (low >> 30)]
    above = rest[0] >> 31  # whether it is nearer to the next quarter turn
    high, middle = ((above.ne(0)).where(word ^ 0xFFFFFFFF, word) for word in rest)
    size = high.cast(x.dtype) * 2.0**-32 + middle.cast(x.dtype) * 2.0**-64
    angle = size * HALF_PI[0]
    negative = x < 0
    angle = (above.ne(0) ^ negative).where(-angle, angle)
    angle = (m.absolute(x) < m.INF).where(angle, m.NAN)
    quarters = quarters.cast(dtypes.int32)
    return negative.where(-quarters, quarters), angle


def reduced(x: Tensor) -> tuple[Tensor, Pair]:
    """Quarter turns as int32, and the rest of the angle, at most pi/4, in float64 where there is one."""
    small = m.absolute(x) < 0.785
    if x.dtype == dtypes.float32 and not has_doubles():
        turns, angle = _reduced_by_words(x)
        return small.where(constant(0, turns.dtype), turns), single(small.where(x, angle))
    if x.dtype == dtypes.float32:
        quarters, rest = _reduced_single(x)
        pair = single(small.where(x.cast(dtypes.float64), rest))
    else:
        quarters, found = _reduced_double(x)
        pair = Pair(small.where(x, found.high), small.where(0.0, found.low))
    return small.where(0.0, quarters).cast(dtypes.int32), pair


def _terms(first: int, last: int) -> list[float]:
    """Taylor's coefficients of sine (odd) or cosine (even), highest power first."""
    return [(-1) ** (k // 2) / math.factorial(k) for k in range(last, first - 1, -2)]


def _wave(x: Tensor, turned: int) -> Tensor:
    """sin(x), `turned` quarter turns on."""
    quarters, rest = reduced(x)
    return _sine(quarters + turned if turned else quarters, rest, x.dtype)


def _sine(quarters: Tensor, rest: Pair, dtype: DType) -> Tensor:
    double = dtype == dtypes.float64
    r = rest.high.cast(dtype)
    square = r * r
    sine = fma(r * square, polynomial(square, _terms(3, 17 if double else 9)), rest.low if double else 0.0) + r
    cosine = fma(square * square, polynomial(square, _terms(4, 16 if double else 10)), fma(square, -0.5, 1.0))
    if double:
        cosine = cosine - r * rest.low
    value = (quarters & 1).ne(0).where(cosine, sine)
    return (quarters & 2).ne(0).where(-value, value)


def has_doubles() -> bool:
    return m.widest_float() == dtypes.float64


def sin(x: Tensor) -> Tensor:
    return x.eq(0).where(x, _wave(x, 0))


def cos(x: Tensor) -> Tensor:
    return _wave(x, 1)


def both_of(rest: Pair) -> tuple[Pair, Pair]:
    """Sine and cosine of at most pi/4, with some digits more than the dtype's."""
    r = rest.high
    square = r * r
    sine = joined(r, fma(r * square, polynomial(square, _terms(3, 17)), rest.low))
    half = exact_product(r, r)
    top = exact_sum(constant(1.0, r.dtype), half.high * -0.5)
    tail = fma(square * square, polynomial(square, _terms(4, 16)), half.low * -0.5 - r * rest.low)
    return sine, joined(top.high, top.low + tail)


def _tangent(quarters: Tensor, sine: Pair, cosine: Pair) -> Pair:
    return ((-cosine) / sine).where((quarters & 1).ne(0), sine / cosine)


def tan(x: Tensor) -> Tensor:
    """The quotient of both series; float32 takes float64 all the way, where there is one."""
    quarters, rest = reduced(x)
    if not has_doubles():
        return x.eq(0).where(x, _sine(quarters, rest, x.dtype) / _sine(quarters + 1, rest, x.dtype))
    value = _tangent(quarters, *both_of(rest)).rounded
    return (m.absolute(x) < 1e-8).where(x, value.cast(x.dtype))


def of_turns(x: Tensor) -> tuple[Tensor, Pair]:
    """pi * x as `reduced` gives an angle, nothing lost: whole turns of x are those of the angle."""
    part = x - 2.0 * m.round_even(x * 0.5)
    quarters = nearest(part * 2.0)
    return quarters.cast(dtypes.int32), number(math.pi, PI_LOW, x.dtype).times(fma(quarters, -0.5, part))


def sin_of_turns(x: Tensor) -> Tensor:
    """sin(pi * x)."""
    return _sine(*of_turns(x), x.dtype)


def _taylor(mp, k):
    """Of sin(x) / x in x*x."""
    return (-1) ** k / mp.factorial(2 * k + 1)


def _taylor_of_cosine(mp, k):
    return (-1) ** k / mp.factorial(2 * k)


def exactly_both_of(rest: Pair) -> tuple[Pair, Pair]:
    """Sine and cosine of at most pi/4, with some ten digits more than the dtype's."""
    square = rest * rest
    sine, cosine = (evaluated(square, series(term, 12), Pair, 6) for term in (_taylor, _taylor_of_cosine))
    return rest * sine, cosine


def sine_of_turns(x: Tensor) -> Pair:
    """The size of sin(pi * x), with some ten digits more than the dtype's."""
    quarters, rest = of_turns(x)
    sine, cosine = exactly_both_of(rest)
    value = cosine.where((quarters & 1).ne(0), sine)
    return (-value).where(value.high < 0, value)


def cotangent_of_turns(x: Tensor) -> Pair:
    quarters, rest = of_turns(x)
    return -_tangent(quarters + 1, *exactly_both_of(rest))
