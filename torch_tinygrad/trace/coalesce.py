"""Fewer nodes for the same values: results that are overwritten or forgotten before anyone reads them are not computed,
and results that are only copied elsewhere are written there at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import prod

from torch_tinygrad.trace.geometry import element_set, extent, overlaps
from torch_tinygrad.trace.nodes import Node, Region, Storage, Trace
from torch_tinygrad.trace.pointwise import COPY, FILL, canonical, value_reads

_MAX_EXACT = 16


def drop_dead(trace: Trace) -> Trace:
    """The trace without nodes nobody needs: walked backwards, keeping for each storage the bytes that no later node
    needs. A node with several results of which some are needed keeps those, and None for the others."""
    unneeded = [_Unneeded(storage) for storage in trace.storages]
    kept: list[Node] = []
    for node in reversed(trace.nodes):
        outs = tuple(None if out is None or unneeded[out.storage].holds(out) else out for out in node.outs)
        if node.outs and all(out is None for out in outs) and any(out is not None for out in node.outs):
            continue
        for out in outs:
            if out is not None:
                unneeded[out.storage].add(out)
        for region in value_reads(node):
            unneeded[region.storage].remove(region)
        kept.append(node if outs == node.outs else Node(node.op, node.args, outs, node.origin, node.outs))
    kept.reverse()
    return Trace(kept, trace.storages, trace.numbers)


def forward_copies(trace: Trace) -> Trace:
    """The trace in which a node whose only result is read once, by a copy right after it, writes where the copy would:
    `a[i] = i` is recorded as a fill of a temporary and a copy of that."""
    uses = [2 if storage.live or storage.has_value else 0 for storage in trace.storages]
    for node in trace.nodes:
        for region in (*value_reads(node), *(out for out in node.outs if out is not None)):
            uses[region.storage] += 1
    kept: list[Node] = []
    for node in trace.nodes:
        copy = canonical(node)
        if kept and copy.op == COPY and len(kept[-1].outs) == 1:
            made, source, target = canonical(kept[-1]), copy.args[1], copy.outs[0]
            spreads = made.op in (FILL, COPY)
            if made.outs[0] == source and uses[source.storage] == 2 and source.dtype == target.dtype:
                if spreads or source.size == target.size:
                    args = (target, *made.args[1:]) if spreads else made.args
                    kept[-1] = Node(made.op, args, (target,), made.origin)
                    continue
        kept.append(node)
    return Trace(kept, trace.storages, trace.numbers)


class _Unneeded:
    """The part of a storage whose present value nobody reads: disjoint sorted intervals of bytes, and a few regions
    with gaps. It may hold less than the truth, never more."""

    __slots__ = ("starts", "ends", "exact", "nbytes")

    def __init__(self, storage: Storage):
        gone = not storage.live and storage.nbytes > 0
        self.nbytes = storage.nbytes
        self.starts: list[int] = [0] if gone else []
        self.ends: list[int] = [storage.nbytes] if gone else []
        self.exact: dict[tuple, Region] = {}

    def span(self, region: Region) -> tuple[int, int]:
        """The bytes that a region may reach."""
        return _bytes(region) if region.moves < 0 or 0 in region.size else (0, self.nbytes)

    def holds(self, region: Region) -> bool:
        low, high = self.span(region)
        at = bisect_right(self.starts, low) - 1
        if low >= high or (at >= 0 and high <= self.ends[at]):
            return True
        return bool(self.exact) and _key(region) in self.exact

    def add(self, region: Region) -> None:
        """A write makes what was there before it unneeded."""
        low, high = self.span(region)
        _, dims = element_set(region)
        if len(dims) <= 1 and high - low == prod(size for size, _ in dims) * region.dtype.itemsize:
            first, last = bisect_left(self.ends, low), bisect_right(self.starts, high)
            if first < last:
                low, high = min(low, self.starts[first]), max(high, self.ends[last - 1])
            self.starts[first:last], self.ends[first:last] = [low], [high]
        else:
            if len(self.exact) >= _MAX_EXACT:
                self.exact.clear()
            self.exact[_key(region)] = region

    def remove(self, region: Region) -> None:
        """A read needs what was there before it."""
        low, high = self.span(region)
        if low >= high:
            return
        first, last = bisect_right(self.ends, low), bisect_left(self.starts, high)
        if first < last:
            left = [(self.starts[first], low)] if self.starts[first] < low else []
            right = [(high, self.ends[last - 1])] if high < self.ends[last - 1] else []
            self.starts[first:last] = [start for start, _ in left + right]
            self.ends[first:last] = [end for _, end in left + right]
        if self.exact:
            self.exact = {key: written for key, written in self.exact.items() if not overlaps(written, region)}


def _bytes(region: Region) -> tuple[int, int]:
    low, high = extent(region.size, region.stride, region.offset)
    return low * region.dtype.itemsize, high * region.dtype.itemsize


def _key(region: Region) -> tuple:
    low, dims = element_set(region)
    return region.dtype.itemsize, region.moves, low, tuple(dims)
