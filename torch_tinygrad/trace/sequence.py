"""Loops whose iterations need each other's results (`a[i] = a[i - 1] * 0.5 + b[i]`): they cannot be batched, but one
kernel may run the iterations in turn. Such a loop becomes one node that holds its first iteration and how it advances;
loops of such loops: `rounds`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import torch

from torch_tinygrad.trace.batch import Loop, Motion, moving_parts
from torch_tinygrad.trace.geometry import families_meet, meets_itself
from torch_tinygrad.trace.nodes import Node, Region

SEQUENCE = "tiny::sequence"

# Fewer iterations are as fast unrolled; wider ones are worth kernels of their own.
MIN_ITERATIONS = 8
MAX_WIDTH = 1 << 16

Access = tuple[Region, Motion, bool]  # a region, how it moves, and whether it is written


@dataclass(frozen=True)
class Rounds:
    """Loops one after the other, and all of them again, `count` times: for each loop, each of its nodes and each of the
    node's motions, by how much it moves from round to round."""

    loops: list[Loop]
    advances: list[list[list[int]]]
    count: int

    @staticmethod
    def of(loop: Loop) -> Rounds:
        return Rounds([loop], [[[0] * len(motions) for motions in loop.motions]], 1)


def sequence(loop: Loop, nodes: list[Node], can_sequence: Callable[[Node], bool]) -> Node | None:
    """The loop as one node, with the nodes it stands for; None where its iterations must stay apart."""
    if loop.count < MIN_ITERATIONS or not all(can_sequence(node) for node in loop.nodes):
        return None
    accesses = [access for number in range(len(loop.nodes)) for access in accesses_of(loop, number)]
    walks = any(writes and motion.delta and not motion.private for _, motion, writes in accesses)
    return Node(SEQUENCE, (Rounds.of(loop), nodes), ()) if walks and fits_in_a_kernel([loop]) else None


def fits_in_a_kernel(loops: list[Loop]) -> bool:
    """Whether one kernel can run the loops one after the other, each in turn."""
    accesses = [a for loop in loops for number in range(len(loop.nodes)) for a in accesses_of(loop, number)]
    if not all(_is_plain(access) for access in accesses) or not _is_typed(accesses):
        return False
    return all(_is_independent(loop, nest) for loop in loops for nest in nests(loop))


def accesses_of(loop: Loop, number: int) -> list[Access]:
    """What a node reads, then what it writes."""
    node, parts = loop.nodes[number], moving_parts(loop.nodes[number])
    first = len(parts) - sum(out is not None for out in node.outs)
    moving = zip(parts, loop.motions[number], strict=True)
    return [(part, motion, i >= first) for i, (part, motion) in enumerate(moving) if isinstance(part, Region)]


def nests(loop: Loop) -> list[list[int]]:
    """The nodes of an iteration in groups whose results have one size. A group's elements are computed one by one: all
    nodes for the first element, then all for the second."""
    groups: list[list[int]] = []
    size: tuple[int, ...] | None = None
    for number in range(len(loop.nodes)):
        own = accesses_of(loop, number)[-1][0].size
        if not groups or own != size:
            groups.append([])
        groups[-1].append(number)
        size = own
    return groups


def _is_plain(access: Access) -> bool:
    region, _, writes = access
    if region.moves >= 0 or region.dtype.is_complex or not 0 < region.numel <= MAX_WIDTH:
        return False
    return not (writes and meets_itself(region.size, region.stride))


def _is_typed(accesses: list[Access]) -> bool:
    """Whether every storage is used as one dtype."""
    dtypes: dict[int, torch.dtype] = {}
    return all(dtypes.setdefault(region.storage, region.dtype) == region.dtype for region, _, _ in accesses)


def _is_independent(loop: Loop, nest: list[int]) -> bool:
    """Whether the order of elements does not matter within an iteration, and temporaries are read as they were written
    in the same nest."""
    written: set[Region] = set()
    shared: list[Access] = []
    size = accesses_of(loop, nest[0])[-1][0].size
    for number in nest:
        accesses = accesses_of(loop, number)
        if any(motion.private and not writes and region not in written for region, motion, writes in accesses):
            return False
        if any(writes and region.size != size for region, _, writes in accesses):
            return False
        written |= {region for region, _, writes in accesses if writes}
        shared += [access for access in accesses if not access[1].private]
    if all(z == 1 for z in size):
        return True
    for (a, motion_a, writes_a), (b, motion_b, writes_b) in combinations(shared, 2):
        if a.storage == b.storage and (writes_a or writes_b) and (a, motion_a.delta) != (b, motion_b.delta):
            if families_meet(a, b, [(motion_b.delta - motion_a.delta, 0, loop.count - 1)]):
                return False
    return True
