"""Loops of any number of steps: a trace that ends in a loop is known by the nodes before it, its first two steps, and
how many there are. csrc/flush/repeats.cpp finds such loops; here they are cut short and made of another length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from .nodes import Number, Region, Trace


@dataclass(frozen=True)
class Repeats:
    """`changing`: positions of the first step's numbers that are others in other steps; each step has `numbers` of its
    own, behind those of the one before."""

    first: int  # nodes before the steps
    period: int  # nodes of a step
    numbers: int
    changing: frozenset[int]

    def varying(self, count: int) -> set[int]:
        """Positions of numbers that change, of so many steps."""
        return {p + step * self.numbers for p in self.changing for step in range(count)}


def _leaves(argument: Any) -> Iterator[Any]:
    if isinstance(argument, (list, tuple)):
        for a in argument:
            yield from _leaves(a)
    else:
        yield argument


def _numbers(nodes: Sequence[Any]) -> list[Number]:
    return [a for node in nodes for a in _leaves(node[1]) if isinstance(a, Number)]


def cut_short(trace: Trace, first: int, period: int, count: int) -> tuple[Trace, Repeats]:
    """The trace with two steps, and what is known of the others."""
    nodes = cast(list[Any], trace.nodes)
    steps = [_numbers(nodes[at : at + period]) for at in range(first, first + count * period, period)]
    values = zip(*([trace.numbers[n.position] for n in step] for step in steps), strict=True)
    changing = frozenset(
        n.position for n, column in zip(steps[0], values, strict=True) if len(set(map(repr, column))) > 1
    )
    head = nodes[: first + 2 * period]
    numbers = 1 + max((n.position for n in _numbers(head)), default=-1)
    storages = 1 + max(a.storage for node in head for a in _leaves([node[1], node[2]]) if isinstance(a, Region))
    short = Trace(cast(Any, head), trace.storages[:storages], trace.numbers[:numbers])
    return short, Repeats(first, period, len(steps[0]), changing)


def of_length(short: Trace, repeats: Repeats, count: int) -> Trace:
    """The trace with so many steps."""
    nodes = cast(list[Any], short.nodes)
    first, period = repeats.first, repeats.period
    steps = [nodes[first : first + period], nodes[first + period :]]
    regions = [[a for node in step for a in _leaves([node[1], node[2]]) if isinstance(a, Region)] for step in steps]
    storages = max((b.storage - a.storage for a, b in zip(*regions, strict=True)), default=0)
    table = list(short.numbers)
    made: dict[tuple[int, int], Region] = {}

    def further(a: Any, b: Any, step: int) -> Any:
        if isinstance(a, (list, tuple)):
            return [further(x, y, step) for x, y in zip(a, b, strict=True)]
        if isinstance(a, Number):
            position = a.position + step * repeats.numbers
            return Number(table[position], position)
        if isinstance(a, Region):
            if (id(a), step) not in made:
                storage, offset = (x + step * (y - x) for x, y in ((a.storage, b.storage), (a.offset, b.offset)))
                made[id(a), step] = replace(a, storage=storage, offset=offset)
            return made[id(a), step]
        return a

    out = nodes[: first + 2 * period]
    begin = len(table) - 2 * repeats.numbers
    for step in range(2, count):
        # Any numbers, as long as they differ where they do.
        table += [table[p] + (step if p in repeats.changing else 0) for p in range(begin, begin + repeats.numbers)]
        for (op, *before), (_, *after) in zip(*steps, strict=True):
            out.append((op, *(further(a, b, step) for a, b in zip(before, after, strict=True))))
    own = short.storages[len(short.storages) - 2 * storages :][:storages]
    return Trace(cast(Any, out), [*short.storages, *(replace(s) for _ in range(2, count) for s in own)], table)


def runs(positions: Sequence[int]) -> list[tuple[int, int, int]]:
    """Positions as few arithmetic progressions: first, step, length."""
    found: list[tuple[int, int, int]] = []
    for position in positions:
        if found:
            start, step, length = found[-1]
            if length == 1 or position == start + length * step:
                found[-1] = start, step if length > 1 else position - start, length + 1
                continue
        found.append((position, 0, 1))
    return found
