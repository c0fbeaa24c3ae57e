"""Loops in loops that one kernel can run in turn: a table that is filled cell by cell, row by row, is a loop over its
rows of a loop over cells. `reroll` finds the inner ones; here those that follow each other in the same steps become
rounds of one node, with the few nodes that may stand between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch_tinygrad.trace.batch import Loop, Motion, moving_arguments, moving_parts
from torch_tinygrad.trace.nodes import Lifted, Node, Number, Region, Trace, reads
from torch_tinygrad.trace.pointwise import canonical
from torch_tinygrad.trace.sequence import SEQUENCE, Rounds, fits_in_a_kernel

# Fewer rounds stay apart; what one round has at most: loops, and nodes between two of them.
MIN_ROUNDS = 3
_MAX_LOOPS = 4
_MAX_BETWEEN = 16


@dataclass(frozen=True)
class _Part:
    """A loop of a round, and the nodes of the trace that it stands for. Parts with the same structure do the same,
    with other offsets and positions (`values`)."""

    loop: Loop
    nodes: list[Node]
    structure: tuple
    values: list[list[int]]


def in_rounds(trace: Trace, can_sequence: Callable[[Node], bool], is_pointwise: Callable[[str], bool]) -> Trace:
    """The trace with sequences that repeat themselves as one."""
    if sum(node.op == SEQUENCE for node in trace.nodes) < MIN_ROUNDS:
        return trace
    private = _private(trace)
    nodes: list[Node] = []
    stretch: list[_Part] = []
    between: list[Node] = []

    def close() -> None:
        nodes.extend(_joined(stretch))
        nodes.extend(between)
        stretch.clear()
        between.clear()

    for node in trace.nodes:
        if node.op != SEQUENCE:
            between.append(node)
            fits = is_pointwise(node.op) and can_sequence(canonical(node)) and len(between) <= _MAX_BETWEEN
            if not stretch or not fits:
                close()
            continue
        if between:
            part = _between(between, private)
            if part is None:
                close()
            else:
                stretch.append(part)
                between.clear()
        rounds, inner = node.args
        stretch.append(_part(rounds.loops[0], inner))
    close()
    return Trace(nodes, trace.storages, trace.numbers)


def _private(trace: Trace) -> Callable[[Region, list[Node]], bool]:
    """Whether some nodes are all that use a region's storage."""
    uses: dict[int, set[int]] = {}
    for node in trace.nodes:
        for inner in node.args[1] if node.op == SEQUENCE else [node]:
            for region in (*reads(inner), *(out for out in inner.outs if out is not None)):
                uses.setdefault(region.storage, set()).add(id(inner))

    def is_private(region: Region, nodes: list[Node]) -> bool:
        storage = trace.storages[region.storage]
        return not storage.live and not storage.has_value and uses[region.storage] <= {id(node) for node in nodes}

    return is_private


def _between(nodes: list[Node], is_private: Callable[[Region, list[Node]], bool]) -> _Part | None:
    """Nodes as a loop of one iteration, if one kernel can have them."""
    simple = [canonical(node) for node in nodes]
    motions = [
        [Motion(0, private=isinstance(part, Region) and is_private(part, nodes)) for part in moving_parts(node)]
        for node in simple
    ]
    loop = Loop(simple, motions, 1)
    return _part(loop, list(nodes)) if fits_in_a_kernel([loop]) else None


def _part(loop: Loop, nodes: list[Node]) -> _Part:
    structure: list = [loop.count]
    values: list[list[int]] = []
    temporaries: dict[int, int] = {}
    for node, motions in zip(loop.nodes, loop.motions, strict=True):
        described: list = [node.op]
        indices = set(moving_arguments(node))
        for index, argument in enumerate(node.args):
            if index not in indices and not isinstance(argument, Region):
                described.append(repr(argument.value) if isinstance(argument, Number) else repr(argument))
        for part, motion in zip(moving_parts(node), motions, strict=True):
            described.append((motion.delta, motion.private, motion.lifts, *_kind(part, motion, temporaries)))
        structure.append(tuple(described))
        values.append([part.offset if isinstance(part, Region) else part.position for part in moving_parts(node)])
    return _Part(loop, nodes, tuple(structure), values)


def _kind(part: Region | Number | Lifted, motion: Motion, temporaries: dict[int, int]) -> tuple:
    if isinstance(part, Region):
        storage = part.storage
        where = (temporaries.setdefault(storage, len(temporaries)), part.offset) if motion.private else storage
        return part.dtype, part.size, part.stride, part.moves, where
    if isinstance(part, Lifted):
        return part.is_float, part.size, part.step
    return (isinstance(part.value, float),) if motion.lifts else (repr(part.value),)


def _joined(parts: list[_Part]) -> list[Node]:
    """The parts as nodes, those that repeat themselves in rounds."""
    nodes: list[Node] = []
    at = 0
    while at < len(parts):
        period, count = _longest(parts, at)
        end = at + period * count
        loops = [part.loop for part in parts[at : at + period]]
        stands_for = [node for part in parts[at:end] for node in part.nodes]
        if count >= MIN_ROUNDS and fits_in_a_kernel(loops):
            advances = [_advances(a, b) for a, b in zip(parts[at : at + period], parts[at + period :], strict=False)]
            nodes.append(Node(SEQUENCE, (Rounds(loops, advances, count), stands_for), ()))
            at = end
        else:
            part = parts[at]
            is_loop = part.loop.count > 1
            nodes.extend([Node(SEQUENCE, (Rounds.of(part.loop), part.nodes), ())] if is_loop else part.nodes)
            at += 1
    return nodes


def _longest(parts: list[_Part], at: int) -> tuple[int, int]:
    """The rounds from here on that cover most: how many parts one has, and how many there are."""
    found = (1, 1)
    for period in range(1, _MAX_LOOPS + 1):
        count = 1
        while _goes_on(parts, at, period, count):
            count += 1
        if count >= MIN_ROUNDS and period * count > found[0] * found[1]:
            found = (period, count)
    return found


def _goes_on(parts: list[_Part], at: int, period: int, count: int) -> bool:
    """Whether the round after `count` is as those before it, as far ahead as they are of each other."""
    start = at + period * count
    if start + period > len(parts):
        return False
    for i in range(period):
        first, second, before, now = (parts[at + i + k * period] for k in (0, 1, count - 1, count))
        if now.structure != first.structure or _advances(before, now) != _advances(first, second):
            return False
    return True


def _advances(a: _Part, b: _Part) -> list[list[int]]:
    return [[y - x for x, y in zip(*rows, strict=True)] for rows in zip(a.values, b.values, strict=True)]
