"""Where temporaries live: in memory that a result has not reached yet or that nobody reads any more, else in one arena
a program. Blocks are used again as soon as their last reader has run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch_tinygrad.values.blocks import ALIGNMENT

# The span of what is there before the first step, and after the last.
BEFORE, AFTER = -1, 1 << 62


class Host(NamedTuple):
    """Memory that is there whatever happens, and in use from one step to another alone."""

    first: int
    last: int
    nbytes: int


@dataclass
class _Place:
    """What lies in a host, or in the arena: first step, last step, offset, end."""

    nbytes: float
    placed: list[tuple[int, int, int, int]] = field(default_factory=list)

    def gap(self, first: int, last: int, nbytes: int) -> int | None:
        """Where as many bytes are free from one step to another."""
        if nbytes > self.nbytes:
            return None
        at = 0
        for _, _, begin, end in sorted((p for p in self.placed if p[0] <= last and first <= p[1]), key=lambda p: p[2]):
            if begin - at >= nbytes:
                break
            at = max(at, end)
        return at if at + nbytes <= self.nbytes else None


def plan(lifetimes: list[tuple[int, int, int]], hosts: Sequence[Host] = ()) -> tuple[list[tuple[int | None, int]], int]:
    """For blocks given as (first step, last step, bytes) the number of the host that they lie in (none: the arena) and
    the bytes before them; and the arena's size. First fit, larger blocks first among those that start together; blocks
    whose lifetimes meet never overlap."""
    found: list[tuple[int | None, int]] = [(None, 0)] * len(lifetimes)
    arena = _Place(float("inf"))
    places: list[tuple[int | None, _Place]] = [
        (i, _Place(host.nbytes, [(host.first, host.last, 0, _aligned(host.nbytes))])) for i, host in enumerate(hosts)
    ]
    places.append((None, arena))
    for i in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i][2], lifetimes[i][0])):
        first, last, nbytes = lifetimes[i]
        for number, place in places:
            if (at := place.gap(first, last, nbytes)) is not None:
                place.placed.append((first, last, at, at + _aligned(nbytes)))
                found[i] = number, at
                break
    return found, max((end for *_, end in arena.placed), default=0)


def _aligned(nbytes: int) -> int:
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def shared_blocks(lifetimes: list[tuple[int, int, int]]) -> tuple[list[int], list[int]]:
    """Where no part of a buffer can be an operand: for each lifetime the number of a block of its own, and the blocks'
    sizes. A block is taken again when its last reader has run, by what fits it best and wastes at most half of it."""
    numbers = [0] * len(lifetimes)
    sizes: list[int] = []
    free_after: list[int] = []
    for i in sorted(range(len(lifetimes)), key=lambda i: (lifetimes[i][0], -lifetimes[i][2])):
        first, last, nbytes = lifetimes[i]
        fitting = (b for b, size in enumerate(sizes) if free_after[b] < first and nbytes <= size <= 2 * nbytes)
        block = min(fitting, key=sizes.__getitem__, default=len(sizes))
        if block == len(sizes):
            sizes.append(nbytes)
            free_after.append(last)
        numbers[i], free_after[block] = block, last
    return numbers, sizes
