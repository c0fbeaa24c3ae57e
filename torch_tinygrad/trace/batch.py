"""Iterations of a loop as one group of batched nodes: whether executing each node for all iterations at once keeps
every value, and what the batched nodes are. `reroll` finds the iterations.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import lcm

from torch_tinygrad.trace.geometry import families_meet
from torch_tinygrad.trace.nodes import Lifted, Node, Number, Region, Storage
from torch_tinygrad.trace.pointwise import COPY, FILL

_MAX_PAIRS = 4096


@dataclass(slots=True)
class Motion:
    """One thing that moves from iteration to iteration: a region's offset or a number's position, and by how much.
    `private` regions live in a storage that only their own iteration uses; `lifts` says that a number is to become
    a `Lifted`."""

    delta: int
    private: bool = False
    lifts: bool = False


@dataclass(slots=True)
class Loop:
    """`count` iterations: the canonical nodes of the first, and for each node the motions of its moving parts in the
    order of `moving_parts`. `widths` are the bytes an iteration takes of each private storage."""

    nodes: list[Node]
    motions: list[list[Motion]]
    count: int
    widths: dict[int, int] = field(default_factory=dict)


def moves(op: str, arg) -> bool:
    """Whether an argument may differ between iterations. Numbers without a position, and bools where they take part in
    type promotion, must be equal."""
    if isinstance(arg, Number):
        kinds = (bool, int, float) if op == FILL else (int, float)
        return arg.position >= 0 and isinstance(arg.value, kinds) and (op == FILL or not isinstance(arg.value, bool))
    return isinstance(arg, (Region, Lifted))


def moving_arguments(node: Node) -> list[int]:
    """Which arguments may differ between iterations. A fill or copy does not read its first."""
    first = node.op in (FILL, COPY)
    return [index for index in range(first, len(node.args)) if moves(node.op, node.args[index])]


def moving_parts(node: Node) -> list[Region | Number | Lifted]:
    """Arguments that may differ between iterations, then results."""
    return [node.args[index] for index in moving_arguments(node)] + [out for out in node.outs if out is not None]


def longest_valid(loop: Loop, at_least: int, at_least_if_cut: int) -> int:
    """How many iterations, from the first, may be batched; 0 if fewer than it is worth."""
    pairs = _suspects(loop)
    if pairs is None or not _keeps_order(pairs, at_least):
        return 0
    if _keeps_order(pairs, loop.count):
        return loop.count
    good, bad = at_least, loop.count
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if _keeps_order(pairs, middle) else (good, middle)
    return good if good >= at_least_if_cut else 0


# An access and its step, and one that must not meet it.
Pair = tuple[Region, int, Region, int]


def _suspects(loop: Loop) -> list[Pair] | None:
    """Pairs of accesses to a common storage of which one writes: (first, its step, second, its step) that must not meet
    for an iteration of the first earlier than one of the second. Batching runs node k of every iteration before node
    k + 1 of any, so those are the pairs it swaps. A node reads before it writes."""
    accesses: dict[int, list[tuple[int, int, Region, int]]] = defaultdict(list)
    for number, (node, motions) in enumerate(zip(loop.nodes, loop.motions, strict=True)):
        parts = moving_parts(node)
        outs = sum(out is not None for out in node.outs)
        for index, (part, motion) in enumerate(zip(parts, motions, strict=True)):
            if isinstance(part, Region) and not motion.private:
                is_written = index >= len(parts) - outs
                accesses[part.storage].append((2 * number + is_written, index, part, motion.delta))
    pairs: list[Pair] = []
    for group in accesses.values():
        writes = [access for access in group if access[0] % 2]
        if len(writes) * len(group) > _MAX_PAIRS:
            return None
        for write in writes:
            for other in group:
                if other is write or (other[0] % 2 and other[:2] < write[:2]):
                    continue
                early, late = sorted((write, other), key=lambda access: access[0])
                pairs.append((late[2], late[3], early[2], early[3]))
                if early[0] == late[0]:
                    pairs.append((early[2], early[3], late[2], late[3]))
    return pairs


def _keeps_order(pairs: list[Pair], count: int) -> bool:
    return not any(_meet_in_order(*pair, count) for pair in pairs)


def _meet_in_order(a: Region, step_a: int, b: Region, step_b: int, count: int) -> bool:
    """Whether `a` of some iteration meets `b` of a later one."""
    return families_meet(a, b, [(step_b - step_a, 0, count - 2), (step_b, 1, count - 1)])


def batched(loop: Loop, storages: list[Storage]) -> tuple[list[Node], dict[int, Storage]] | None:
    """The nodes that do what the loop does, and the storages they need enlarged; None if it cannot be said."""
    _measure_private(loop, storages)
    nodes: list[Node] = []
    for node, motions in zip(loop.nodes, loop.motions, strict=True):
        written = _surviving(loop, node, motions)
        if written is None:
            return None
        nodes.extend(written)
    return nodes, {s: Storage(width * loop.count, False, False) for s, width in loop.widths.items()}


def only_last_matters(loop: Loop) -> bool:
    """Whether every iteration leaves its results where the next one does."""
    for node, motions in zip(loop.nodes, loop.motions, strict=True):
        outs = len([out for out in node.outs if out is not None])
        if any(motion.delta and not motion.private for motion in motions[len(motions) - outs :]):
            return False
    return True


def _measure_private(loop: Loop, storages: list[Storage]) -> None:
    """Bytes that one iteration takes of each storage the iterations will share."""
    units: dict[int, int] = {}
    for node, motions in zip(loop.nodes, loop.motions, strict=True):
        for part, motion in zip(moving_parts(node), motions, strict=True):
            if motion.private:
                units[part.storage] = lcm(units.get(part.storage, 1), part.dtype.itemsize)
    loop.widths = {s: -(-storages[s].nbytes // unit) * unit for s, unit in units.items()}


def _surviving(loop: Loop, node: Node, motions: list[Motion]) -> list[Node] | None:
    """The batched node; where later iterations overwrite part of what earlier ones wrote, the part that stays and then
    the whole last iteration."""
    outs = [out for out in node.outs if out is not None]
    rank = len(outs[0].size)
    if any(out.size != outs[0].size for out in outs):
        return None

    def part(first: int, count: int | None, narrow=None) -> Node:
        return _instance(loop, node, motions, rank, first, count, narrow)

    whole = part(0, loop.count)
    out, motion = outs[0], motions[-1]
    ends = zip(outs, motions[-len(outs) :], strict=True)
    if all(s.private or not _meet_in_order(o, s.delta, o, s.delta, loop.count) for o, s in ends):
        return [whole]
    if len(outs) > 1:
        return None
    last = part(loop.count - 1, None)
    if motion.delta == 0:
        return [last]
    for axis, (size, stride) in enumerate(zip(out.size, out.stride, strict=True)):
        shift = motion.delta // stride if stride and motion.delta % stride == 0 else 0
        if 0 < abs(shift) < size:
            low = 0 if shift > 0 else size + shift
            kept = _narrowed(out, rank, axis, size, low, abs(shift))
            assert isinstance(kept, Region)
            if not _meet_in_order(kept, motion.delta, kept, motion.delta, loop.count - 1):
                return [part(0, loop.count - 1, (axis, size, low, abs(shift))), last]
    return None


def _instance(loop: Loop, node: Node, motions: list[Motion], rank: int, first: int, count: int | None, narrow) -> Node:
    """The node for `count` iterations from `first` on, with a new leading dimension, or for that one if count is None;
    `narrow` limits one axis of its results to a part."""
    moving = iter(motions)

    def moved(part):
        motion = next(moving)
        if isinstance(part, Number):
            if not motion.lifts:
                return part
            part = Lifted(part.position, isinstance(part.value, float))
        delta = motion.delta
        if motion.private:
            delta += loop.widths[part.storage] // part.dtype.itemsize
        if isinstance(part, Region):
            part = part.at(offset=part.offset + first * delta)
        else:
            part = Lifted(part.position + first * delta, part.is_float, part.size, part.step)
        if narrow:
            part = _narrowed(part, rank, *narrow)
        if count is None or (delta == 0 and isinstance(part, Lifted)):
            return part
        return _led(part, rank, count, delta)

    args = list(node.args)
    for index in moving_arguments(node):
        args[index] = moved(args[index])
    outs = tuple(None if out is None else moved(out) for out in node.outs)
    if node.op in (FILL, COPY):
        args[0] = outs[0]
    return Node(node.op, tuple(args), outs)


def _aligned(part: Region | Lifted, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Size and steps with size-1 dimensions in front, so that dimensions of all operands correspond."""
    steps = part.stride if isinstance(part, Region) else part.step
    missing = rank - len(part.size)
    return (1,) * missing + part.size, (0,) * missing + steps


def _led(part: Region | Lifted, rank: int, count: int, delta: int) -> Region | Lifted:
    """With a leading dimension over iterations."""
    size, steps = _aligned(part, rank)
    if isinstance(part, Region):
        return part.at(size=(count, *size), stride=(delta, *steps))
    return Lifted(part.position, part.is_float, (count, *size), (delta, *steps))


def _narrowed(part: Region | Lifted, rank: int, axis: int, full: int, low: int, length: int) -> Region | Lifted:
    """Elements low .. low + length of one axis of the results, in an operand; what is broadcast there stays."""
    size, steps = _aligned(part, rank)
    if size[axis] != full:
        return part
    size = (*size[:axis], length, *size[axis + 1 :])
    if isinstance(part, Region):
        return part.at(size=size, stride=steps, offset=part.offset + low * steps[axis])
    return Lifted(part.position + low * steps[axis], part.is_float, size, steps)
