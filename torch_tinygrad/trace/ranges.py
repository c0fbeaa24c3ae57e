"""Ranges of the variables of a family of traces that a program is made for.

A range is a least, a usual and a greatest value of a variable; a box has one for each. Every trace in a box must be one
that can come: its sizes are 2 or more, its regions lie in their storages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import gcd
from operator import and_
from typing import NamedTuple

from .integers import Kinds
from .polynomials import Polynomial, constant, plus, times, with_sum
from .relations import MAX_VARIABLES, NEAR, Relation, Unrelated, Variable, widened

# The least size that is tried, where smaller ones were not seen: code for two or three of something is special.
LEAST = 5
# The least that choices are made at: loops of less are unrolled.
USUAL = 37
# How many times as far as what was looked for a range may go, where it is memory that ends it.
MOST = 8
# How many times as far as what was seen a range is tried first.
WIDEST = 8
# More places than any memory has.
UNBOUNDED = 1 << 40

Box = list[tuple[int, int, int]]
Ends = list[tuple[int, int]]


@dataclass(frozen=True)
class Bounds:
    """What holds of the integers of every trace: each form is at least so much."""

    least: dict[Polynomial, int]

    @staticmethod
    def of(relation: Relation, own: Sequence[int], where: Kinds) -> Bounds:
        n = len(relation.variables)
        forms = relation.forms
        least = {forms[p]: 2 for p in where.sizes if p in forms}
        least |= {forms[p]: 1 for p in where.offsets if p in forms and forms[p] not in least}
        known: dict[tuple, None] = {}
        for offset, nbytes, itemsize in where.bounds:
            strides = where.offsets[offset]
            positions = (nbytes, offset, *strides, *(p - len(strides) for p in strides))
            if any(p in forms for p in positions):
                known[itemsize, tuple(forms.get(p) or constant(own[p], n) for p in positions)] = None
        minus_one = constant(-1, n)
        for itemsize, (nbytes_form, end, *rest) in known:
            for stride, size in zip(rest[: len(rest) // 2], rest[len(rest) // 2 :], strict=True):
                end = plus(end, times(plus(size, minus_one), stride))
            room = plus(nbytes_form, times(constant(-itemsize, n), plus(end, constant(1, n))))
            least[room] = 0
        return Bounds(least)

    def hold(self, ends: Ends) -> bool:
        return all(form(point) >= low for point in product(*ends) for form, low in self.least.items())


def _by_difference(relation: Relation) -> Iterator[Relation]:
    """The same with how much greater a variable is than another in the place of that variable: of a part and the whole
    every such pair is one that may come. It may be none, or less where something smaller tells of the whole."""
    for whole, part in product(range(len(relation.variables)), repeat=2):
        variables, seen = [*relation.variables], relation.seen
        if whole != part and all(s[whole] - s[part] > -NEAR for s in seen):
            variables[whole] = replace(variables[whole], less=part)
            points = tuple((*s[:whole], s[whole] - s[part], *s[whole + 1 :]) for s in seen)
            forms = {p: with_sum(form, whole, part) for p, form in relation.forms.items()}
            yield Relation(tuple(variables), points, forms, relation.loose)


def _by_room(relation: Relation, own: Sequence[int], where: Kinds) -> Iterator[Relation]:
    """The same with what is left behind a region as a variable, in the place of the memory: the longer the steps
    through a memory the fewer there are, and many long ones never come."""
    n = len(relation.variables)
    for offset, nbytes, itemsize in where.bounds if n < MAX_VARIABLES else ():
        strides = where.offsets[offset]
        sizes = [p - len(strides) for p in strides]
        if nbytes in relation.forms or not any(p in relation.forms for p in sizes):
            continue
        end, *rest = (relation.forms.get(p) or constant(own[p], n) for p in (offset, *strides, *sizes))
        for stride, size in zip(rest[: len(strides)], rest[len(strides) :], strict=True):
            end = plus(end, times(plus(size, constant(-1, n)), stride))
        end = plus(end, constant(1, n))
        left = [own[nbytes] // itemsize - end(point) for point in relation.seen]
        if min(left) < 0 or own[nbytes] % itemsize:
            continue
        whole = plus(widened(end), Polynomial(((1, (*(0,) * n, 1)),)))
        forms = {p: widened(form) for p, form in relation.forms.items()}
        forms[nbytes] = times(constant(itemsize, n + 1), whole)
        room = Variable(nbytes, unit=itemsize, used=widened(end))
        seen = tuple((*point, more) for point, more in zip(relation.seen, left, strict=True))
        yield Relation((*relation.variables, room), seen, forms, relation.loose)


def corners(box: Box) -> list[tuple[int, ...]]:
    return list(product(*((low, high) for low, _, high in box)))


def boxes(relation: Relation, own: Sequence[int], where: Kinds) -> list[tuple[Relation, Box]]:
    """Boxes to try a program for, the widest first. Differences of a range have no common divisor: a number that
    divides a n + b at all three divides a and b, so that nothing divides by chance."""
    variants = [(r, Bounds.of(r, own, where)) for r in (relation, *_by_difference(relation))]
    if not variants[0][1].hold(_seen_ends(relation)):
        variants += [(r, Bounds.of(r, own, where)) for r in _by_room(relation, own, where)]
    tried: list[tuple[Relation, Box]] = []

    def add(related: Relation, ends: Ends, is_open: list[tuple[bool, bool]]) -> None:
        values = list(zip(*related.seen, strict=True))
        ranges = [_range(*each) for each in zip(ends, is_open, values, strict=True)]
        box = [r for r in ranges if r is not None]
        if len(box) == len(ranges) and (related, box) not in tried:
            tried.append((related, box))

    widest: tuple[Relation, Reach] | None = None
    for wide in (WIDEST, 2, 1):
        found = [(r, reach) for r, bounds in variants if (reach := _reach(r, bounds, where, wide)) is not None]
        if not found:
            continue
        related, reach = max(found, key=lambda f: f[1].free)  # of equals the first
        widest = widest or (related, reach)
        seen = zip(*related.seen, strict=True)
        add(related, reach.ends, reach.is_open)
        add(related, [_within(*each) for each in zip(reach.ends, reach.is_open, seen, strict=True)], reach.is_open)
    if widest is not None:
        add(widest[0], _from_here(*widest), widest[1].is_open)
    if not tried:
        raise Unrelated("what was seen does not say which sizes may come")
    return tried


class Reach(NamedTuple):
    """Which ends nothing stops, the lower and the upper one of each; how many of them tell how good it is."""

    ends: Ends
    is_open: list[tuple[bool, bool]]
    free: int


def _seen_ends(relation: Relation) -> Ends:
    return [(min(values), max(values)) for values in zip(*relation.seen, strict=True)]


def _reach(relation: Relation, bounds: Bounds, where: Kinds, wide: int) -> Reach | None:
    """The ends of what was seen, moved as far as all traces between them can come."""
    ends = _seen_ends(relation)
    if not bounds.hold(ends):
        return None
    most = [high for _, high in ends]
    are_sizes = [v.position in where.sizes and v.less is None for v in relation.variables]
    memories = {nbytes for _, nbytes, _ in where.bounds}
    ends = _together(ends, wide, bounds)
    free_lows: list[bool] = []
    for v, variable in enumerate(relation.variables):
        is_rest = variable.less is not None or variable.used is not None
        if variable.position in memories and not is_rest:
            free_lows.append(False)  # of memory of which parts alone are used, the least seen leaves room for them
            continue
        wanted = _low(ends[v][0], wide, is_rest or variable.position in where.offsets)
        if variable.less is not None and wide == WIDEST:  # what ends it near 0 is an end that comes
            least = _farthest(ends[v][0], -NEAR, bounds, partial(_moved, ends, v, 0))
            wanted = wanted if least == -NEAR else least
        ends = _moved(ends, v, 0, _farthest(ends[v][0], wanted, bounds, partial(_moved, ends, v, 0)))
        free_lows.append(ends[v][0] == wanted)
    highs = [_high(low, high, wide) for (low, _), high in zip(ends, most, strict=True)]
    free_highs: list[bool] = []
    for v, (is_size, wanted) in enumerate(zip(are_sizes, highs, strict=True)):
        farthest = _farthest(ends[v][1], UNBOUNDED, bounds, partial(_moved, ends, v, 1))
        free_highs.append(farthest == UNBOUNDED or (is_size and farthest > MOST * wanted))
        ends = _moved(ends, v, 1, wanted if free_highs[v] else farthest)
    free = sum(free_highs) + sum(map(and_, free_lows, are_sizes))  # what is no size begins at 0 or soon after
    return Reach(ends, list(zip(free_lows, free_highs, strict=True)), free)


def _high(low: int, most: int, wide: int) -> int:
    """An upper end that nothing stops: a little more, so that differences to a usual value have no common divisor."""
    usual = prime_from(max(most, USUAL, low + 1), 1)
    high = max(most * wide, usual) + 1
    while gcd(high - usual, usual - low) != 1:
        high += 1
    return high


def _together(ends: Ends, wide: int, bounds: Bounds) -> Ends:
    """The upper ends moved by as much each: what one takes of a memory that bounds several, others lack."""
    times = (wide * 0.8**i for i in range(12))
    wider = ([(low, max(int(high * t), high)) for low, high in ends] for t in times)
    return next((some for some in wider if bounds.hold(some)), ends)


def _moved(ends: Ends, v: int, side: int, end: int) -> Ends:
    low, high = ends[v]
    return [*ends[:v], (low, end) if side else (end, high), *ends[v + 1 :]]


def _within(ends: tuple[int, int], is_open: tuple[bool, bool], values: Sequence[int]) -> tuple[int, int]:
    """Without the ends that memory sets: there nothing is left before or behind, and what would be done there goes."""
    low, high = ends
    stops = not is_open[0] and low < min(values), not is_open[1] and high > max(values)
    return low + stops[0], high - stops[1]


def _from_here(relation: Relation, reach: Reach) -> Ends:
    """From the last trace's sizes on: smaller ones may be special, where a program compares them with a number."""
    seen = list(zip(*relation.seen, strict=True))
    return [
        (values[-1], _high(values[-1], max(values), WIDEST) if up else high) if down else (low, high)
        for (low, high), (down, up), values in zip(reach.ends, reach.is_open, seen, strict=True)
    ]


def _low(least: int, wide: int, from_zero: bool) -> int:
    if from_zero:
        return least // wide if wide < WIDEST and least > 0 else min(least, 0)
    return min(least, prime_from(max(least // wide, min(LEAST, least), 2), -1))


def _farthest(here: int, wanted: int, bounds: Bounds, moved: Callable[[int], Ends]) -> int:
    """The end nearest to what is wanted within bounds; `here` is."""
    if bounds.hold(moved(wanted)):
        return wanted
    while abs(wanted - here) > 1:
        middle = (here + wanted) // 2
        here, wanted = (middle, wanted) if bounds.hold(moved(middle)) else (here, middle)
    return here


def _range(ends: tuple[int, int], is_open: tuple[bool, bool], values: Sequence[int]) -> tuple[int, int, int] | None:
    """With a usual value between, a prime if there is one: what a kernel is cut by is then no divisor by chance."""
    low, high = ends
    usual = prime_from(max(*values, USUAL, low + 1), 1)
    if is_open[1]:
        return low, usual, high
    if high == low + 1:
        return low, high, high
    usual = min(usual, high - 1)
    near = range(max(low + 1, usual - 100), min(high, usual + 100))
    order = sorted(near, key=lambda u: (not _is_prime(u), u & (u - 1) == 0, u < usual, abs(u - usual)))
    return next(((low, u, high) for u in order if gcd(high - u, u - low) == 1), None)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def prime_from(n: int, step: int) -> int:
    """The nearest prime, upwards or downwards."""
    while not _is_prime(n):
        n += step
        if n < 2:
            return 2
    return n
