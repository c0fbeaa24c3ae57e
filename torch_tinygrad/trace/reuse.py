"""Which results several kernels would each compute for themselves.

tinygrad fuses what is computed element by element into every kernel that reads it. Where the paths from a result to
those kernels part, storing it once may be cheaper; whether it is, the lowering decides from what it costs to compute.
"""

from __future__ import annotations

from collections.abc import Callable

from .geometry import covers
from .nodes import Node, Trace
from .pointwise import is_pointwise, value_reads

_BITS = 4096  # kernels are told apart by this many bits: a clash makes a worse guess, not a wrong result


def shared_results(
    trace: Trace, is_step: Callable[[Node], bool], fuses: Callable[[str], bool], passes: Callable[[str], int]
) -> set[tuple[int, int]]:
    """(number of the node, number of the result) of results that kernels of different fates read. `is_step` tells
    nodes that run on their own and read stored arguments, `fuses` operators that kernels which read them compute,
    pointwise ones aside, and `passes` as how many kernels another operator counts."""
    # For each storage, the kernels that each later read of its present value ends in, as bits.
    ends: list[list[int]] = [[_bit(-1 - s)] if storage.live else [] for s, storage in enumerate(trace.storages)]
    found: set[tuple[int, int]] = set()
    for t in range(len(trace.nodes) - 1, -1, -1):
        node = trace.nodes[t]
        after: list[int] = []
        for k, out in enumerate(node.outs):
            if out is None:
                continue
            paths = ends[out.storage]
            union = 0
            for path in paths:
                union |= path
            if any(path != union for path in paths):
                found.add((t, k))
                union = _bit(t * 8 + k)
            after.append(union)
            count = trace.storages[out.storage].nbytes // out.dtype.itemsize
            if out.moves < 0 and covers(count, out.size, out.stride, out.offset):
                ends[out.storage] = []
        if not is_step(node) and (is_pointwise(node.op) or fuses(node.op)):
            reached = list(dict.fromkeys(after))
        else:
            reached = [_bit(t * 8 + i) for i in range(passes(node.op))]
        for region in value_reads(node):
            paths = ends[region.storage]
            paths.extend(path for path in reached if path not in paths)
    return found


def _bit(number: int) -> int:
    return 1 << (number * 2654435761 % _BITS)
