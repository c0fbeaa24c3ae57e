"""Which of the integers of a family of traces vary on their own, and how the others follow from them.

All that is known of the family is a few of its members. What is guessed wrongly costs speed alone: every integer of a
trace is compared before a program for many sizes is run (csrc/sizes.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd

from .integers import Kinds
from .polynomials import Polynomial, candidates, constant, plus, times, with_sum

MAX_VARIABLES = 3
# The least size that is tried, where smaller ones were not seen: code for two or three of something is special.
LEAST = 5
# The least that choices are made at: loops of less are unrolled.
USUAL = 37
# What a size may have more or less than a multiple of another.
NEAR = 16

Column = tuple[int, ...]
Box = list[tuple[int, int, int]]


class Unrelated(Exception):
    """No polynomials of few variables were found. The text is the reason."""


@dataclass(frozen=True)
class Variable:
    """An integer, by its position; or, with `less`, how much greater it is than another."""

    position: int
    less: int | None = None


@dataclass(frozen=True)
class Relation:
    """`forms`: integers that follow from the variables, by position; `loose`: numbers that follow from nothing, and
    must be inputs."""

    variables: tuple[Variable, ...]
    seen: tuple[tuple[int, ...], ...]  # the variables' values, of each member
    forms: dict[int, Polynomial]
    loose: frozenset[int]


def _is_likely(form: Polynomial) -> bool:
    """Whether a relation that few members show is one that programs have: n + 3, 2 n, 64 (n - 1), 6 n - 1, 3 n m."""
    if form.divisor != 1:
        return False
    if len(form.terms) == 1:
        factor, powers = form.terms[0]
        return factor > 0 and sum(powers) > 0
    by_degree = sorted(form.terms, key=lambda term: -sum(term[1]))
    (factor, highest), rest = by_degree[0], by_degree[1:]
    near = all(f % factor == 0 or (abs(f) <= NEAR and not sum(powers)) for f, powers in rest)
    return factor > 0 and near and sum(highest) > 0


def _sum_of(points: Sequence[Sequence[int]], column: Column) -> Polynomial | None:
    """The column as a sum and difference of variables and a constant."""
    n = len(points[0])
    for signs in sorted(product((0, 1, -1), repeat=n), key=lambda s: (sum(map(abs, s)), -sum(s))):
        rest = {v - sum(s * x for s, x in zip(signs, p, strict=True)) for p, v in zip(points, column, strict=True)}
        if len(rest) == 1:
            terms = [(s, tuple(int(i == j) for j in range(n))) for i, s in enumerate(signs) if s]
            return plus(Polynomial(tuple(terms)), constant(rest.pop(), n))
    return None


class _Relating:
    """Variables and forms as they are found, the simplest first."""

    def __init__(self, members: Sequence[Sequence[int]], where: Kinds):
        self.where, self.members = where, members
        self.columns: dict[Column, list[int]] = {}
        for position, column in enumerate(zip(*members, strict=True)):
            if len(set(column)) > 1:
                self.columns.setdefault(column, []).append(position)
        self.variables: list[int] = []
        self.points: list[list[int]] = [[] for _ in members]
        self.found: dict[Column, Polynomial] = {}
        self.loose: set[int] = set()

    def relate(self) -> Relation:
        offsets = self.where.offsets
        for column in sorted(self.columns, key=self._order):
            form = None
            if self.variables:
                positions = self.columns[column]
                form = next((f for p in positions if p in offsets and (f := self._by_digits(p)) is not None), None)
                form = form or next((f for f in candidates(self.points, column, 2) if _is_likely(f)), None)
            if form is None and all(p in self.where.numbers for p in self.columns[column]):
                self.loose.update(self.columns[column])
                continue
            self.found[column] = form or self._new_variable(column)
        if not self.variables:
            raise Unrelated("no size varies")
        forms = {position: form for column, form in self.found.items() for position in self.columns[column]}
        variables = tuple(map(Variable, self.variables))
        return Relation(variables, tuple(map(tuple, self.points)), forms, frozenset(self.loose))

    def _order(self, column: Column) -> tuple[bool, bool, int, int]:
        first = self.columns[column][0]
        return first not in self.where.sizes, first in self.where.offsets, max(map(abs, column)), first

    def _new_variable(self, column: Column) -> Polynomial:
        if len(self.variables) == MAX_VARIABLES:
            raise Unrelated(f"more than {MAX_VARIABLES} sizes vary on their own")
        if min(column) < 2:
            raise Unrelated("a size or an offset that varies is 0 or 1")
        self.variables.append(self.columns[column][0])
        for point, value in zip(self.points, column, strict=True):
            point.append(value)
        self.found = {c: _widened(f) for c, f in self.found.items()}  # so far they have one variable less
        return Polynomial(((1, (0,) * (len(self.variables) - 1) + (1,)),))

    def _form_at(self, position: int) -> Polynomial | None:
        """Of an integer that was looked at already, or does not vary."""
        column = tuple(m[position] for m in self.members)
        return constant(column[0], len(self.variables)) if len(set(column)) == 1 else self.found.get(column)

    def _by_digits(self, position: int) -> Polynomial | None:
        """An offset as so many rows, and so many elements: sums of variables each."""
        rest = [m[position] for m in self.members]
        total = Polynomial(())
        strides = self.where.offsets[position]
        for stride in sorted(strides, key=lambda s: -self.members[-1][s]):
            form = self._form_at(stride)
            steps = [m[stride] for m in self.members]
            if form is None or min(steps) < 1:
                return None
            digits = _sum_of(self.points, tuple(r // s for r, s in zip(rest, steps, strict=True)))
            if digits is None:
                return None
            total = plus(total, times(digits, form))
            rest = [r % s for r, s in zip(rest, steps, strict=True)]
        left = _sum_of(self.points, tuple(rest))
        return None if left is None else plus(total, left)


def relate(members: Sequence[Sequence[int]], where: Kinds) -> Relation:
    """The relation between the integers of the members."""
    return _Relating(members, where).relate()


def _widened(form: Polynomial) -> Polynomial:
    return Polynomial(tuple((factor, (*powers, 0)) for factor, powers in form.terms), form.divisor)


def _by_difference(relation: Relation) -> Relation | None:
    """The same with the least variable, and how much greater another is, in the place of that other: of a part and the
    whole every such pair is a size that may come."""
    for whole, part in product(range(len(relation.variables)), repeat=2):
        variables, seen = [*relation.variables], relation.seen
        if whole != part and all(v.less is None for v in variables) and all(s[whole] > s[part] for s in seen):
            variables[whole] = Variable(variables[whole].position, variables[part].position)
            points = tuple((*s[:whole], s[whole] - s[part], *s[whole + 1 :]) for s in seen)
            forms = {p: with_sum(form, whole, part) for p, form in relation.forms.items()}
            return Relation(tuple(variables), points, forms, relation.loose)
    return None


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def prime_from(n: int, step: int) -> int:
    """The nearest prime, upwards or downwards."""
    while not _is_prime(n):
        n += step
        if n < 2:
            return 2
    return n


def corners(box: Box) -> list[tuple[int, ...]]:
    return list(product(*((low, high) for low, _, high in box)))


def boxes(
    relation: Relation, sizes: frozenset[int], fits: Callable[[Relation, tuple[int, ...]], bool]
) -> list[tuple[Relation, Box]]:
    """Ranges of the variables to try a program for, the widest first: for each variable a least, a usual and a greatest
    value. Their differences have no common divisor: a number that divides a n + b at all three divides a and b, so that
    nothing divides by chance. Sizes that are 2 or more stay so, and `fits` holds at all corners."""
    tried: list[tuple[Relation, Box]] = []
    for related in filter(None, (relation, _by_difference(relation))):
        follow = [form for p, form in related.forms.items() if p in sizes]
        each = list(zip(*related.seen, strict=True))
        for wide in (8, 2, 1):
            ranges = [_ranges(v, wide, len(each) == 1) for v in each]
            for box in map(list, product(*ranges)):
                points = corners(box)
                if any(form(p) < 2 for form in follow for p in points) or not all(fits(related, p) for p in points):
                    continue
                if (related, box) not in tried:
                    tried.append((related, box))
                break
        if tried:
            return tried
    raise Unrelated("what was seen does not say which sizes may come")


def _ranges(values: Sequence[int], wide: int, is_alone: bool) -> list[tuple[int, int, int]]:
    """Ranges around values that were seen, the widest first; then such as end before the widest does, or with what was
    seen. Few of them where other variables have as many."""
    usual = prime_from(max(*values, USUAL), 1)
    ends = [max(min(values) // wide, min(LEAST, *values), 2), max(min(values), 2)]
    least = [prime_from(low, -1) for low in ends]
    least = [low if low < usual else prime_from(usual - 1, -1) for low in least]
    open_ended = [(low, usual, _high(max(values) * wide, low, usual)) for low in least]
    most = max(values)
    steps = range(1, 40) if is_alone else range(0)
    highs = [*(high for i in steps if (high := int(most * wide * 0.9**i)) > most), most]
    inside = [[(low, u, high) for high in highs if (u := _between(low, high))] for low in ends]
    (wider, narrower), (closed, closest) = open_ended, inside
    return [wider, *closed, narrower, *closest]


def _between(low: int, high: int) -> int:
    """A usual value that ends of a range leave room for; 0 for none."""
    return next((u for u in range(high - 1, low, -1) if gcd(high - u, u - low) == 1), 0)


def _high(most: int, low: int, usual: int) -> int:
    high = max(most, usual) + 1
    while gcd(high - usual, usual - low) != 1:
        high += 1
    return high
