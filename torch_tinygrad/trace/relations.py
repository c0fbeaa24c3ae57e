"""Which of the integers of a family of traces vary on their own, and how the others follow from them.

All that is known of the family is a few of its members. What is guessed wrongly costs speed alone: every integer of a
trace is compared before a program for many sizes is run (csrc/sizes.cpp)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from .polynomials import Polynomial, candidates

MAX_VARIABLES = 2
# The least size that is tried, where smaller ones were not seen: code for two or three of something is special.
LEAST = 5
# The least that choices are made at: loops of less are unrolled.
USUAL = 37


class Unrelated(Exception):
    """No polynomials of few variables were found. The text is the reason."""


@dataclass(frozen=True)
class Relation:
    """`variables`: positions of integers that vary on their own; `forms`: those that follow, the variables included;
    `loose`: numbers that follow from nothing, and must be inputs."""

    variables: tuple[int, ...]
    seen: tuple[tuple[int, ...], ...]  # the variables' values, of each member
    forms: dict[int, Polynomial]
    loose: frozenset[int]


def _is_likely(form: Polynomial) -> bool:
    """Whether a relation that few members show is one that programs have: n + 3, 2 n, 64 (n - 1), 3 n m."""
    if form.divisor != 1:
        return False
    if len(form.terms) == 1:
        factor, powers = form.terms[0]
        return factor > 0 and sum(powers) > 0
    by_degree = sorted(form.terms, key=lambda term: -sum(term[1]))
    (factor, highest), rest = by_degree[0], by_degree[1:]
    whole = all(f % factor == 0 for f, _ in rest)
    return factor > 0 and whole and sum(highest) > 0


def relate(members: Sequence[Sequence[int]], sizes: frozenset[int], numbers: range) -> Relation:
    """The relation between the integers of the members. `sizes` are positions of sizes of regions, `numbers` of
    numbers."""
    columns: dict[tuple[int, ...], list[int]] = {}
    for position, column in enumerate(zip(*members, strict=True)):
        if len(set(column)) > 1:
            columns.setdefault(column, []).append(position)
    variables: list[int] = []
    points: list[list[int]] = [[] for _ in members]
    found: dict[tuple[int, ...], Polynomial] = {}
    loose: set[int] = set()

    def order(column: tuple[int, ...]) -> tuple[bool, int, int]:
        return not sizes.issuperset(columns[column][:1]), max(map(abs, column)), columns[column][0]

    for column in sorted(columns, key=order):
        form = None
        if variables:
            form = next((f for f in candidates(points, column, 2) if _is_likely(f)), None)
        if form is None:
            if all(p in numbers for p in columns[column]):
                loose.update(columns[column])
                continue
            if len(variables) == MAX_VARIABLES:
                raise Unrelated(f"more than {MAX_VARIABLES} sizes vary on their own")
            if min(column) < 2:
                raise Unrelated("a size or an offset that varies is 0 or 1")
            variables.append(columns[column][0])
            for point, value in zip(points, column, strict=True):
                point.append(value)
            # Forms so far have one variable less.
            found = {c: _widened(f) for c, f in found.items()}
            powers = (0,) * (len(variables) - 1) + (1,)
            form = Polynomial(((1, powers),))
        found[column] = form
    if not variables:
        raise Unrelated("no size varies")
    forms = {position: form for column, form in found.items() for position in columns[column]}
    return Relation(tuple(variables), tuple(map(tuple, points)), forms, frozenset(loose))


def _widened(form: Polynomial) -> Polynomial:
    return Polynomial(tuple((factor, (*powers, 0)) for factor, powers in form.terms), form.divisor)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def prime_from(n: int, step: int) -> int:
    """The nearest prime, upwards or downwards."""
    while not _is_prime(n):
        n += step
        if n < 2:
            return 2
    return n


def boxes(relation: Relation, sizes: frozenset[int]) -> list[list[tuple[int, int, int]]]:
    """Ranges of the variables to try a program for, the widest first: for each variable a least, a usual and a greatest
    value. Their differences have no common divisor: a number that divides a n + b at all three divides a and b, so that
    nothing divides by chance. Sizes that are 2 or more stay so."""
    tried = []
    follow = [form for p, form in relation.forms.items() if p in sizes]
    for wide in (8, 2, 1):
        each = list(zip(*relation.seen, strict=True))
        usual = [prime_from(max(*values, USUAL), 1) for values in each]
        low = [prime_from(max(min(values) // wide, min(LEAST, *values)), -1) for values in each]
        while any(form(low) < 2 for form in follow):
            low = [prime_from(least + 1, 1) for least in low]
        low = [least if least < most else prime_from(most - 1, -1) for least, most in zip(low, usual, strict=True)]
        high = [_high(max(values) * wide, *ends) for values, *ends in zip(each, low, usual, strict=True)]
        box = list(zip(low, usual, high, strict=True))
        if box not in tried and not any(form(low) < 2 for form in follow):
            tried.append(box)
    if not tried:
        raise Unrelated("sizes that vary are 0 or 1 somewhere")
    return tried


def _high(most: int, low: int, usual: int) -> int:
    high = max(most, usual) + 1
    while gcd(high - usual, usual - low) != 1:
        high += 1
    return high
