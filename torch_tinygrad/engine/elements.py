"""Kernels that compute element by element: what they store where, and when they may store over what they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tinygrad.uop.ops import AxisType, GroupOp, Ops, UOp

_PLAIN = {Ops.REDUCE, Ops.PARAM, Ops.CONST, Ops.RANGE, Ops.INDEX, Ops.STORE, Ops.GROUP, Ops.END, Ops.SINK}
_PLAIN |= GroupOp.Elementwise


@dataclass(frozen=True, eq=False)
class Body:
    """What is stored where for each element that the loops pass."""

    loops: tuple[UOp, ...]
    sums: tuple[UOp, ...]  # loops that a value is summed up over
    stores: dict[UOp, UOp]  # element → value

    @property
    def loads(self) -> list[UOp]:
        values = UOp.sink(*self.stores.values(), *(index for element in self.stores for index in element.src[1:]))
        return [u for u in values.toposort() if u.op is Ops.INDEX]

    def overwrites_in_turn(self, memory: Callable[[UOp], object]) -> bool:
        """Whether every element is overwritten after all that need its old value have it: it is read at its own place
        only, by the value that overwrites it, and loaded once. `memory` tells the buffer that an element lies in."""
        written = {memory(element): element for element in self.stores}
        overwritten = [load for load in self.loads if memory(load) in written]
        if len(written) < len(self.stores) or (overwritten and self.sums):
            return False
        for load in overwritten:
            element = written[memory(load)]
            if load.src[1:] != element.src[1:] or load not in self.stores[element].backward_slice_with_self:
                return False
            if not all(loop in element.ranges for loop in self.loops):
                return False
        return not overwritten or not _may_load_twice(self.stores.values(), overwritten)


def body_of(kernel: UOp) -> Body | None:
    """The kernel's, if it has nothing else."""
    if kernel.op is not Ops.SINK or len(kernel.src) != 1 or (end := kernel.src[0]).op is not Ops.END:
        return None
    stores, loops = end.src[0].src if end.src[0].op is Ops.GROUP else end.src[:1], end.src[1:]
    if any(s.op is not Ops.STORE or len(s.src) != 2 or s.src[0].op is not Ops.INDEX for s in stores):
        return None
    parts = kernel.toposort()
    if any(u.op not in _PLAIN or (u.op is Ops.INDEX and u.src[0].op is not Ops.PARAM) for u in parts):
        return None
    ranges = [u for u in parts if u.op is Ops.RANGE]
    sums = tuple(sorted((r for r in ranges if r.arg[-1] is AxisType.REDUCE), key=lambda r: r.arg))
    if any(r.arg[-1] is not AxisType.WEAK for r in loops) or set(ranges) - {*loops, *sums}:
        return None
    body = Body(loops, sums, {s.src[0]: s.src[1] for s in stores})
    return body if sums_are_side_by_side(parts, sums) else None


def sums_are_side_by_side(parts: Iterable[UOp], sums: tuple[UOp, ...]) -> bool:
    """Whether each of them runs over all these loops, and none inside another."""
    reduces = [u for u in parts if u.op is Ops.REDUCE]
    if any({*u.src[1:]} != {*sums} or u.arg[1] for u in reduces):
        return False
    return not any(v.op is Ops.REDUCE for u in reduces for v in u.src[0].backward_slice_with_self)


def _may_load_twice(values: Iterable[UOp], loads: list[UOp]) -> bool:
    """Whether tinygrad may load some of these again under a condition, and so after they are overwritten."""
    conditional = (s for u in UOp.sink(*values).toposort() if u.op is Ops.WHERE for s in u.src[1:])
    for value in conditional:
        while value.op is Ops.CAST:
            value = value.src[0]
        if value in loads:
            return True
    return False
