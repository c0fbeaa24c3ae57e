"""Finds the loops of the program that was recorded and lowers each once, batched: n structurally identical groups of
nodes whose offsets and numbers advance by constants become one group with a leading dimension of size n.

Runs are found for every period up to 32 nodes (`columns.py`) and tried from the longest to the shortest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import copysign

import numpy as np

from torch_tinygrad.trace import pointwise
from torch_tinygrad.trace.batch import (
    Loop,
    Motion,
    batched,
    longest_valid,
    moving_arguments,
    only_last_matters,
)
from torch_tinygrad.trace.columns import Columns, columns_of, edges_of, intervals
from torch_tinygrad.trace.nodes import Lifted, Node, Number, Trace
from torch_tinygrad.trace.rounds import in_rounds
from torch_tinygrad.trace.sequence import sequence

CanLift = Callable[[str, int], bool]
CanSequence = Callable[[Node], bool]

MAX_PERIOD = 32
MIN_ITERATIONS = 3
MIN_ITERATIONS_OF_A_PIECE = 8
_MAX_FAILURES = 400
_REMEMBERED_FAILURES = 64


def reroll(
    trace: Trace,
    is_pointwise=pointwise.is_pointwise,
    can_lift: CanLift = lambda op, argument: True,
    can_sequence: CanSequence = lambda node: False,
) -> Trace:
    """The trace with its loops batched, again and again for nested ones, until none is left. Storages keep their
    numbers; those of other iterations' temporaries are no longer used.

    Every region of a batched node has the iterations as its leading dimension (stride 0 where it does not move,
    negative where the loop runs backwards). Numbers that vary become `Lifted` with size (n, 1, ...); a consumer must
    treat those as numbers in type promotion. Fills and copies appear as `pointwise.canonical` says.
    `can_lift(op, argument)` says whether a number among the arguments of a canonical operator may become a `Lifted`,
    `can_sequence(node)` whether the loops that are left may have this node in one kernel for all iterations."""
    original = trace
    while (smaller := _pass(trace, is_pointwise, partial(_attempt, can_lift=can_lift))) is not None:
        trace = smaller
    trace = trace if trace is original else _settled(trace, original)
    in_turn = partial(_attempt_in_turn, can_lift=can_lift, can_sequence=can_sequence)
    # Loops of loops are found afterwards: a row of a table is no iteration, however short.
    in_turns = _pass(trace, is_pointwise, in_turn, shortest_first=True) or trace
    return in_rounds(in_turns, can_sequence, is_pointwise)


def _settled(trace: Trace, original: Trace) -> Trace:
    """Numbers that turned out equal in all iterations are constants again. Only here, so that a row of equal numbers
    does not look different from its neighbours while outer loops are sought."""
    constants = {a.position: a for node in original.nodes for a in node.args if type(a) is Number}

    def settle(arg):
        if type(arg) is not Lifted or arg.position not in constants:
            return arg
        first, rest = constants[arg.position], _positions(arg)
        return first if all(_same_number(first, constants.get(position)) for position in rest) else arg

    nodes = [replace(node, args=tuple(map(settle, node.args))) for node in trace.nodes]
    return Trace(nodes, trace.storages, trace.numbers)


def _positions(lifted: Lifted) -> list[int]:
    positions = np.array([lifted.position])
    for size, step in zip(lifted.size, lifted.step, strict=True):
        positions = np.add.outer(positions, np.arange(size) * step).ravel()
    return positions.tolist()


def _same_number(a: Number | None, b: Number | None) -> bool:
    """Equal as constants: of one type, sign of zero included."""
    if a is None or b is None or type(a.value) is not type(b.value) or a.value != b.value:
        return False
    if isinstance(a.value, float) and isinstance(b.value, float):
        return copysign(1, a.value) == copysign(1, b.value)
    return True


def _pass(trace: Trace, is_pointwise, attempt, shortest_first: bool = False) -> Trace | None:
    if len(trace.nodes) < MIN_ITERATIONS:
        return None
    columns = columns_of(trace, is_pointwise)
    replaced: dict[int, tuple[int, list[Node]]] = {}
    storages = list(trace.storages)
    free = np.ones(len(trace.nodes), bool)
    failed: list[tuple[int, int, int]] = []
    periods = range(1, min(MAX_PERIOD, len(trace.nodes) // MIN_ITERATIONS) + 1)
    candidates = [(low - high, period, low, high) for period in periods for low, high in intervals(columns, period)]
    for _, period, low, high in sorted(candidates, key=(lambda c: (c[1], c[0])) if shortest_first else None):
        if len(failed) >= _MAX_FAILURES:
            break
        for first, end in _free_parts(free, low, high + 2 * period):
            if any(a <= first and end <= b and period % p == 0 for a, b, p in failed[-_REMEMBERED_FAILURES:]):
                continue
            low, tries = first, 2
            while end - low >= MIN_ITERATIONS * period and tries:
                found = attempt(columns, trace, period, low, end)
                if found is None:
                    tries -= 1
                    low += period
                    continue
                start, low, nodes, enlarged = found
                replaced[start] = low, nodes
                free[start:low] = False
                for s, storage in enlarged.items():
                    storages[s] = storage
            if not tries:
                failed.append((first, end, period))
    if not replaced:
        return None
    return Trace(_spliced(trace.nodes, replaced), storages, trace.numbers)


def _free_parts(free: np.ndarray, low: int, high: int) -> list[list[int]]:
    """The parts of low .. high that no accepted loop has taken."""
    part = free[low:high]
    if part.all():
        return [[low, high]]
    return (edges_of(part) + low).tolist()


def _spliced(nodes: list[Node], replaced: dict[int, tuple[int, list[Node]]]) -> list[Node]:
    out, at = [], 0
    for start in sorted(replaced):
        end, group = replaced[start]
        out += nodes[at:start] + group
        at = end
    return out + nodes[at:]


def _attempt(columns: Columns, trace: Trace, period: int, low: int, high: int, can_lift: CanLift):
    """(start, end, nodes, enlarged storages) of the longest loop that can be batched from about `low` on, of nodes
    low .. high that are known to repeat."""
    start, loop = _first_loop(columns, period, low, high, can_lift)
    if loop is None:
        return None
    loop.count = longest_valid(loop, MIN_ITERATIONS, MIN_ITERATIONS_OF_A_PIECE)
    if not loop.count:
        return None
    end = start + loop.count * period
    if only_last_matters(loop):
        return start, end, trace.nodes[end - period : end], {}
    result = batched(loop, trace.storages)
    return result and (start, end, *result)


def _attempt_in_turn(
    columns: Columns, trace: Trace, period: int, low: int, high: int, can_lift: CanLift, can_sequence: CanSequence
):
    """Like `_attempt`, of a loop whose iterations run in turn."""
    start, loop = _first_loop(columns, period, low, high, can_lift)
    if loop is None:
        return None
    end = start + loop.count * period
    _settle(loop, trace.nodes[start:end])
    node = sequence(loop, trace.nodes[start:end], can_sequence)
    return node and (start, end, [node], {})


def _settle(loop: Loop, nodes: list[Node]) -> None:
    """Numbers that are the same in all iterations stay constants."""
    for n, (node, motions) in enumerate(zip(loop.nodes, loop.motions, strict=True)):
        for index, motion in zip(moving_arguments(node), motions, strict=False):
            if motion.lifts:
                others = (pointwise.canonical(other).args[index] for other in nodes[n :: len(loop.nodes)])
                motion.lifts = not all(_same_number(node.args[index], number) for number in others)


def _first_loop(columns: Columns, period: int, low: int, high: int, can_lift: CanLift) -> tuple[int, Loop | None]:
    """Where a loop begins that is closed in itself, and the loop."""
    for start in range(low, min(low + period, high - MIN_ITERATIONS * period + 1)):
        if _closed(columns, start, period):
            loop = _loop(columns, start, period, (high - start) // period, can_lift)
            if loop is not None:
                return start, loop
    return low, None


def _closed(columns: Columns, start: int, period: int) -> bool:
    """Whether the nodes of one iteration have their private storages to themselves."""
    storage = columns.storage[columns.starts[start] : columns.starts[start + period]]
    storage = storage[columns.private(period)[storage] & (storage >= 0)]
    return bool((columns.first[storage] >= start).all() and (columns.last[storage] < start + period).all())


def _loop(columns: Columns, start: int, period: int, count: int, can_lift: CanLift) -> Loop | None:
    """The loop whose first iteration begins at `start`, checked exactly; None if a private storage is used across
    the borders of its iterations, or a number that must be constant is not."""
    private = columns.private(period)
    motions: list[list[Motion]] = []
    iterations = np.arange(count)
    for t in range(start, start + period):
        row = []
        for number in range(columns.starts[t + 1] - columns.starts[t]):
            entries = columns.starts[t + iterations * period] + number
            values, storage = columns.value[entries], columns.storage[entries]
            delta = int(values[1] - values[0])
            if (np.diff(values) != delta).any():
                return None
            if storage[0] >= 0 and private[storage[0]]:
                begin, end = columns.first[storage] - start, columns.last[storage] - start
                if (begin - begin[0] != iterations * period).any() or (
                    columns.nbytes[storage] != columns.nbytes[storage[0]]
                ).any():
                    return None
                inside = private[storage] & (begin // period == iterations) & (end // period == iterations)
                if not inside.all():
                    count = int(np.argmin(inside))
                    if count < MIN_ITERATIONS:
                        return None
                    iterations = iterations[:count]
                row.append(Motion(delta, private=True))
            elif (storage != storage[0]).any():
                return None
            else:
                row.append(Motion(delta))
        motions.append(row)
    nodes = columns.nodes[start : start + period]
    for t, (node, row) in enumerate(zip(nodes, motions, strict=True)):
        for index, motion in zip(moving_arguments(node), row, strict=False):
            if type(node.args[index]) is not Number:
                continue
            motion.lifts = motion.delta != 0 and can_lift(node.op, index)
            others = (columns.nodes[start + t + i * period].args[index] for i in range(1, count))
            if not motion.lifts and not all(type(n) is Number and _same_number(node.args[index], n) for n in others):
                return None
    return Loop(nodes, motions, count)
