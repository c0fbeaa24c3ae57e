"""Which of the integers of a family of traces vary on their own, and how the others follow from them.

All that is known of the family is a few of its members. What is guessed wrongly costs speed alone: every integer of a
trace is compared before a program for many sizes is run (csrc/sizes/sizes.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product

from .integers import Kinds
from .polynomials import Polynomial, candidates, constant, plus, times

MAX_VARIABLES = 3
# What a size may have more or less than a multiple of another, and an offset than a size; what differs by more may
# differ by anything.
NEAR = 16
NEXT = 2

Column = tuple[int, ...]


class Unrelated(Exception):
    """No polynomials of few variables were found. The text is the reason."""


@dataclass(frozen=True)
class Variable:
    """An integer, by its position, in so many units. With `stride`, the position of another: how many of those it is,
    and `rest` more. With `less`, how much greater it is than that variable; with `used`, than that."""

    position: int
    stride: int | None = None
    rest: int = 0
    less: int | None = None
    unit: int = 1
    used: Polynomial | None = None


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


def _sum_of(
    points: Sequence[Sequence[int]], column: Column, likely: Callable[[int], bool] = lambda _: True
) -> Polynomial | None:
    """The column as a sum and difference of variables and a constant that is likely."""
    n = len(points[0])
    for signs in sorted(product((0, 1, -1), repeat=n), key=lambda s: (sum(map(abs, s)), -sum(s))):
        rest = {v - sum(s * x for s, x in zip(signs, p, strict=True)) for p, v in zip(points, column, strict=True)}
        if len(rest) == 1 and (not any(signs) or likely(min(rest))):
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
        self.variables: list[Variable] = []
        self.points: list[list[int]] = [[] for _ in members]
        self.found: dict[Column, Polynomial] = {}
        self.loose: set[int] = set()

    def relate(self) -> Relation:
        for column in sorted(self.columns, key=self._order):
            form = None
            if self.variables:
                form = self._as_offset(column) or self._likely(column, 1) or self._as_product(column)
                form = form or (None if self._may_be_free(column) else self._likely(column, 2))
            if form is None and all(p in self.where.numbers for p in self.columns[column]):
                self.loose.update(self.columns[column])
                continue
            self.found[column] = form or self._new_variable(column)
        if not self.variables:
            raise Unrelated("no size varies")
        forms = {position: form for column, form in self.found.items() for position in self.columns[column]}
        return Relation(tuple(self.variables), tuple(map(tuple, self.points)), forms, frozenset(self.loose))

    def _order(self, column: Column) -> tuple[bool, bool, int, int]:
        first = self.columns[column][0]
        return first not in self.where.sizes, first in self.where.offsets, max(map(abs, column)), first

    def _new_variable(self, column: Column) -> Polynomial:
        if len(self.variables) == MAX_VARIABLES:
            raise Unrelated(f"more than {MAX_VARIABLES} sizes vary on their own")
        position = next((p for p in self.columns[column] if p in self.where.offsets), self.columns[column][0])
        is_offset = position in self.where.offsets
        if min(column) < (1 if is_offset else 2):
            raise Unrelated("a size or an offset that varies is 0 or 1")
        stride, rest = self._row(position) if is_offset else (None, 0)
        unit = max((i for _, nbytes, i in self.where.bounds if nbytes == position), default=1)
        unit = 1 if any(value % unit for value in column) else unit
        steps = [unit if stride is None else m[stride] for m in self.members]
        self.variables.append(Variable(position, stride, rest, unit=unit))
        for point, value, step in zip(self.points, column, steps, strict=True):
            point.append(value // step)
        self.found = {c: widened(f) for c, f in self.found.items()}  # so far they have one variable less
        own = Polynomial(((unit, (0,) * (len(self.variables) - 1) + (1,)),))
        form = None if stride is None else self._form_at(stride)
        return own if form is None else plus(times(own, form), constant(rest, len(self.variables)))

    def _row(self, position: int) -> tuple[int | None, int]:
        """Of an offset, the position of a stride that it has a whole number of, and what it has more."""
        for stride in self._strides(self.where.neighbours[position]):
            steps = [m[stride] for m in self.members]
            rests = {m[position] % s for m, s in zip(self.members, steps, strict=True)} if min(steps) > 1 else set()
            if len(rests) == 1 and self._form_at(stride) is not None:
                return stride, rests.pop()
        return None, 0

    def _strides(self, positions: Sequence[int]) -> list[int]:
        """Those that differ, the greatest first."""
        by_column = {tuple(m[p] for m in self.members): p for p in positions}
        return sorted(by_column.values(), key=lambda s: -self.members[-1][s])

    def _likely(self, column: Column, terms: int) -> Polynomial | None:
        return next((f for f in candidates(self.points, column, terms) if _is_likely(f)), None)

    def _as_product(self, column: Column) -> Polynomial | None:
        """So many times a product of two sizes: what a matrix has of elements, or of bytes."""
        sizes = [c for c in self.found if self.columns[c][0] in self.where.sizes]
        for a, b in combinations_with_replacement(sizes, 2):
            elements = [x * y for x, y in zip(a, b, strict=True)]
            factor = column[0] // elements[0]
            if factor > 0 and all(factor * e == c for e, c in zip(elements, column, strict=True)):
                return times(constant(factor, len(self.variables)), times(self.found[a], self.found[b]))
        return None

    def _form_at(self, position: int) -> Polynomial | None:
        """Of an integer that was looked at already, or does not vary."""
        column = tuple(m[position] for m in self.members)
        return constant(column[0], len(self.variables)) if len(set(column)) == 1 else self.found.get(column)

    def _as_offset(self, column: Column) -> Polynomial | None:
        """So many rows and so many elements of its region, or of another one in the same memory."""
        offsets = [p for p in self.columns[column] if p in self.where.offsets]
        ways = ((p, strides[p]) for p in offsets for strides in (self.where.offsets, self.where.neighbours))
        return next((f for p, strides in ways if (f := self._by_digits(p, strides)) is not None), None)

    def _ends_near(self, position: int) -> set[int]:
        """Where regions in an offset's memory may begin and end: in elements, and in rows of them."""
        nbytes, itemsize = next(((n, i) for o, n, i in self.where.bounds if o == position), (0, 0))
        if not itemsize:
            return {0}
        first = self.members[-1]
        rows = {first[p] for p in self.where.neighbours[position] if len({m[p] for m in self.members}) == 1} | {1}
        elements = first[nbytes] // itemsize if len({m[nbytes] for m in self.members}) == 1 else 0
        return {0, *rows, *(elements // row for row in rows if row > 0)}

    def _may_be_free(self, column: Column) -> bool:
        """Whether it may be a variable of its own without being a size."""
        return len(self.variables) < MAX_VARIABLES and all(p in self.where.offsets for p in self.columns[column])

    def _by_digits(self, position: int, strides: Sequence[int]) -> Polynomial | None:
        """An offset as so many of each stride: sums of variables each."""
        ends = self._ends_near(position)

        def likely(more: int) -> bool:
            return len(self.variables) == MAX_VARIABLES or any(abs(more - end) <= NEXT for end in ends)

        rest = [m[position] for m in self.members]
        total = Polynomial(())
        for stride in self._strides(strides):
            form = self._form_at(stride)
            steps = [m[stride] for m in self.members]
            if form is None or min(steps) < 1:
                return None
            digits = _sum_of(self.points, tuple(r // s for r, s in zip(rest, steps, strict=True)), likely)
            if digits is None:
                return None
            total = plus(total, times(digits, form))
            rest = [r % s for r, s in zip(rest, steps, strict=True)]
        left = _sum_of(self.points, tuple(rest), likely)
        return None if left is None else plus(total, left)


def relate(members: Sequence[Sequence[int]], where: Kinds) -> Relation:
    """The relation between the integers of the members."""
    return _Relating(members, where).relate()


def widened(form: Polynomial) -> Polynomial:
    """The same with one variable more, which it does not have."""
    return Polynomial(tuple((factor, (*powers, 0)) for factor, powers in form.terms), form.divisor)
