"""Integers as polynomials in the variables of a family of traces, found from a few of its members.

Exact arithmetic on a handful of points: a polynomial is taken only if it gives every point's value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from math import comb

Powers = tuple[int, ...]

MAX_DEGREE = 3


@dataclass(frozen=True, slots=True)
class Polynomial:
    terms: tuple[tuple[int, Powers], ...]
    divisor: int = 1

    def __call__(self, variables: Sequence[int]) -> int:
        value, rest = divmod(sum(factor * _monomial(powers, variables) for factor, powers in self.terms), self.divisor)
        if rest:
            raise ValueError("not a whole number")
        return value


def _monomial(powers: Powers, variables: Sequence[int]) -> int:
    value = 1
    for power, variable in zip(powers, variables, strict=True):
        value *= variable**power
    return value


def _monomials(variables: int) -> list[Powers]:
    """By degree: 1, then each variable, then products."""
    all_powers = product(range(MAX_DEGREE + 1), repeat=variables)
    return sorted((p for p in all_powers if sum(p) <= MAX_DEGREE), key=lambda p: (sum(p), [-x for x in p]))


_PRIME = (1 << 61) - 1


def _has_solution(columns: list[list[int]], values: Sequence[int]) -> bool:
    """The same modulo a prime, which is quick: where there is none, there is none at all."""
    rows = [[c[i] % _PRIME for c in columns] + [v % _PRIME] for i, v in enumerate(values)]
    for i in range(len(columns)):
        pivot = next((r for r in range(i, len(rows)) if rows[r][i]), None)
        if pivot is None:
            return False
        rows[i], rows[pivot] = rows[pivot], rows[i]
        inverse = pow(rows[i][i], -1, _PRIME)
        for r in range(i + 1, len(rows)):
            if rows[r][i]:
                factor = rows[r][i] * inverse
                rows[r] = [(a - factor * b) % _PRIME for a, b in zip(rows[r], rows[i], strict=True)]
    return not any(row[-1] for row in rows[len(columns) :])


def _solve(columns: list[list[int]], values: Sequence[int]) -> list[Fraction] | None:
    """Coefficients that give all values as sums of the columns, if there are any and only one choice."""
    if not _has_solution(columns, values):
        return None
    n = len(columns)
    rows = [[Fraction(c[i]) for c in columns] + [Fraction(v)] for i, v in enumerate(values)]
    for i in range(n):
        pivot = next((r for r in range(i, len(rows)) if rows[r][i]), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for r in range(len(rows)):
            if r != i and rows[r][i]:
                factor = rows[r][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    if any(row[n] for row in rows[n:]):
        return None
    return [rows[i][n] for i in range(n)]


def candidates(points: Sequence[Sequence[int]], values: Sequence[int], most: int) -> Iterator[Polynomial]:
    """Polynomials of at most so many terms through all points, the simplest first."""
    monomials = _monomials(len(points[0]))
    columns = {m: [_monomial(m, p) for p in points] for m in monomials}
    for count in range(1, min(most, len(points)) + 1):
        for chosen in combinations(monomials, count):
            found = _solve([columns[m] for m in chosen], values)
            if found is None or not all(found):
                continue
            divisor = max(f.denominator for f in found)
            # Through as many points as there are terms there is always one: then only whole factors are believed.
            if divisor > (2 if count < len(points) else 1):
                continue
            if all((f * divisor).denominator == 1 for f in found):
                terms = tuple((int(f * divisor), m) for f, m in zip(found, chosen, strict=True))
                if _is_whole(terms, divisor, len(points[0])):
                    yield Polynomial(terms, divisor)


def _is_whole(terms: tuple[tuple[int, Powers], ...], divisor: int, variables: int) -> bool:
    """Whether it is a whole number everywhere, as n (n + 1) / 2 is and (n + 1) / 2 is not: what divides at a few points
    by chance does not at others."""
    residues = product(range(divisor), repeat=variables)
    return divisor == 1 or not any(sum(f * _monomial(m, r) for f, m in terms) % divisor for r in residues)


def _gathered(terms: Iterator[tuple[int, Powers]], divisor: int = 1) -> Polynomial:
    factors: dict[Powers, int] = {}
    for factor, powers in terms:
        factors[powers] = factors.get(powers, 0) + factor
    return Polynomial(tuple((factor, powers) for powers, factor in factors.items() if factor), divisor)


def plus(a: Polynomial, b: Polynomial) -> Polynomial:
    """Of whole factors."""
    return _gathered(iter((*a.terms, *b.terms)))


def times(a: Polynomial, b: Polynomial) -> Polynomial:
    products = (
        (f * g, tuple(x + y for x, y in zip(p, q, strict=True))) for (f, p), (g, q) in product(a.terms, b.terms)
    )
    return _gathered(products, a.divisor * b.divisor)


def with_sum(form: Polynomial, whole: int, part: int) -> Polynomial:
    """The same in other variables: in the place of variable `whole` stands what it has more than variable `part`."""
    terms: list[tuple[int, Powers]] = []
    for factor, powers in form.terms:
        n = powers[whole]
        for i in range(n + 1):
            moved = [*powers]
            moved[whole], moved[part] = n - i, powers[part] + i
            terms.append((factor * comb(n, i), tuple(moved)))
    return _gathered(iter(terms), form.divisor)


def constant(value: int, variables: int) -> Polynomial:
    return Polynomial(((value, (0,) * variables),))


def through(points: Sequence[Sequence[int]], values: Sequence[int], most: int = 4) -> Polynomial | None:
    """The simplest polynomial that has these values at these points."""
    if not any(values):
        return Polynomial(())
    return next(candidates(points, values, most), None)
