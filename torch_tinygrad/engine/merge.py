"""Kernels that loop over the same elements become one kernel with several results.

tinygrad's kernels write one result each. An optimizer's step then reads its gradients and moments once for every result
it leaves; in one kernel each is read once, and what one result needs of another never leaves the registers. Sums over
the same elements, such as a norm's gradients, share one pass in the same way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tinygrad.engine.realize import get_call_arg_uops
from tinygrad.uop.ops import AxisType, GroupOp, KernelInfo, Ops, UOp

from .order import Call, slots

# Buffers that a kernel may have on every device (Metal binds 31), operations, as the time that tinygrad takes for one
# kernel grows with their square, and groups that a kernel is tried with.
_MOST_BUFFERS = 24
_MOST_OPERATIONS = 500
_MOST_TRIES = 8

_PLAIN = {Ops.REDUCE, Ops.PARAM, Ops.CONST, Ops.RANGE, Ops.INDEX, Ops.STORE, Ops.END, Ops.SINK, *GroupOp.Elementwise}

# Those over the elements, and those that each is summed up over.
Loops = tuple[tuple[UOp, ...], tuple[UOp, ...]]


@dataclass(eq=False)
class Kernel:
    """What is stored where for each element that the loops pass. Buffers have the same number (a PARAM's slot) in all
    kernels, and loops are numbered in order, so that equal elements and equal values are the same UOp."""

    place: int
    members: list[int]
    loops: tuple[UOp, ...]
    sums: tuple[UOp, ...]  # loops that a value is summed up over
    stores: dict[UOp, UOp]  # element → value

    @property
    def loads(self) -> list[UOp]:
        values = UOp.sink(*self.stores.values(), *(index for element in self.stores for index in element.src[1:]))
        return [u for u in values.toposort() if u.op is Ops.INDEX]


def merged(
    calls: list[Call], before: list[set[int]], same: dict[UOp, UOp], kept: set[UOp], with_sums: bool
) -> list[Call]:
    """The calls with kernels merged, those that sum too if `with_sums`. `before` says which calls each one must follow,
    `same` which buffer a version of one is, and `kept` which buffers are read after the program."""
    buffers: list[UOp] = []
    group_of: dict[int, Kernel] = {}
    users: dict[UOp, list[Kernel]] = defaultdict(list)
    for kernel in _candidates(calls, buffers, with_sums):
        (i,) = kernel.members
        loops = (*kernel.loops, *kernel.sums)
        own = {load for load in kernel.loads if all(r in load.ranges for r in loops)} | kernel.stores.keys()
        for group in {id(g): g for element in own for g in users[element][-_MOST_TRIES:]}.values():
            places = (group_of[j].place if j in group_of else j for j in before[i] if j not in group.members)
            if all(place < group.place for place in places) and (stores := _joined(group, kernel, buffers, same)):
                group.stores, group.sums = stores, group.sums or kernel.sums
                group.members.append(i)
                kernel = group
                break
        group_of[i] = kernel
        for element in own:
            if kernel not in users[element][-_MOST_TRIES:]:
                users[element].append(kernel)
    readers: dict[UOp, set[int]] = defaultdict(set)
    for i, call in enumerate(calls):
        for buffer in call.reads:
            readers[buffer].add(i)
    result = []
    for i, call in enumerate(calls):
        merged_into = group_of.get(i)
        if merged_into is None or len(merged_into.members) == 1:
            result.append(call)
        elif merged_into.place == i:
            inside = set(merged_into.members)
            stored = {buffers[element.src[0].arg.slot] for element in merged_into.stores}
            unread = {b for b in stored if b not in kept and not readers[b] - inside}
            result.append(_call(merged_into, buffers, unread))
    return result


def _candidates(calls: list[Call], buffers: list[UOp], with_sums: bool) -> Iterator[Kernel]:
    """Kernels that share a buffer with another one of the same loops."""
    found: dict[int, tuple[tuple[UOp, ...], list[UOp], Loops]] = {}
    for i, call in enumerate(calls):
        if (loops := _loops(call.uop.src[0])) is not None and (with_sums or not loops[1]):
            found[i] = (tuple(r.src[0] for r in loops[0]), get_call_arg_uops(call.uop), loops)
    uses = Counter((sizes, buffer) for sizes, arguments, _ in found.values() for buffer in set(arguments))
    numbers: dict[UOp, int] = {}
    for i, (sizes, arguments, (over, sums)) in found.items():
        if all(b.op is Ops.BUFFER for b in arguments) and any(uses[sizes, b] > 1 for b in arguments):
            for buffer in arguments:
                if buffer not in numbers:
                    numbers[buffer] = len(buffers)
                    buffers.append(buffer)
            yield _numbered(i, calls[i].uop, over, sums, [numbers[b] for b in arguments])


def _loops(sink: UOp) -> Loops | None:
    """The loops over the elements of a kernel that stores one value for each, and those it sums that up over."""
    if sink.op is not Ops.SINK or len(sink.src) != 1 or (end := sink.src[0]).op is not Ops.END:
        return None
    store, loops = end.src[0], end.src[1:]
    if store.op is not Ops.STORE or len(store.src) != 2 or store.src[0].op is not Ops.INDEX:
        return None
    parts = sink.toposort()
    if any(u.op not in _PLAIN or (u.op is Ops.INDEX and u.src[0].op is not Ops.PARAM) for u in parts):
        return None
    ranges = [u for u in parts if u.op is Ops.RANGE]
    sums = tuple(sorted((r for r in ranges if r.arg[-1] is AxisType.REDUCE), key=lambda r: r.arg))
    if any(r.arg[-1] is not AxisType.WEAK for r in loops) or set(ranges) - {*loops, *sums}:
        return None
    return (loops, sums) if _are_side_by_side([u for u in parts if u.op is Ops.REDUCE], sums) else None


def _are_side_by_side(reduces: list[UOp], sums: tuple[UOp, ...]) -> bool:
    """Whether each of them runs over all these loops, and none inside another."""
    if any({*u.src[1:]} != {*sums} or u.arg[1] for u in reduces):
        return False
    return not any(v.op is Ops.REDUCE for u in reduces for v in u.src[0].backward_slice_with_self)


def _numbered(i: int, call: UOp, loops: tuple[UOp, ...], sums: tuple[UOp, ...], numbers: list[int]) -> Kernel:
    end = call.src[0].src[0]
    places = {r: r.replace(arg=(axis, r.arg[-1])) for axis, r in enumerate((*loops, *sums))}
    places |= _renumbered(end, numbers)
    element, value = end.src[0].substitute(places, walk=True).src
    sums = tuple(places[r] for r in sums)
    reduces = {u: u.replace(src=(u.src[0], *sums)) for u in value.toposort() if u.op is Ops.REDUCE}
    return Kernel(i, [i], tuple(places[r] for r in loops), sums, {element: value.substitute(reduces)})


def _renumbered(kernel: UOp, numbers) -> dict[UOp, UOp]:
    params = [u for u in kernel.toposort() if u.op is Ops.PARAM]
    return {u: u.replace(arg=replace(u.arg, slot=numbers[u.arg.slot])) for u in params}


def _joined(group: Kernel, kernel: Kernel, buffers: list[UOp], same: dict[UOp, UOp]) -> dict[UOp, UOp] | None:
    """The stores of both, where running them element by element gives what running one after the other does."""
    sums = group.sums or kernel.sums
    if group.loops != kernel.loops or (kernel.sums and kernel.sums != sums):
        return None
    stores = group.stores | {e: value.substitute(group.stores, walk=True) for e, value in kernel.stores.items()}
    parts = UOp.sink(*stores.values()).toposort()
    if len(parts) > _MOST_OPERATIONS or not _are_side_by_side([u for u in parts if u.op is Ops.REDUCE], sums):
        return None
    loads = Kernel(group.place, [], group.loops, sums, stores).loads

    def memory(element: UOp) -> UOp:
        buffer = buffers[element.src[0].arg.slot]
        return same.get(buffer, buffer)

    written = {memory(element): element for element in stores}
    if len(written) != len(group.stores) + len(kernel.stores):
        return None
    if len({u.src[0] for u in (*loads, *stores)}) > _MOST_BUFFERS:
        return None
    overwritten = [load for load in loads if memory(load) in written]
    if overwritten and sums:
        return None
    for load in overwritten:
        element = written[memory(load)]
        if load.src[1:] != element.src[1:] or load not in stores[element].backward_slice_with_self:
            return None
    return None if overwritten and may_load_twice(stores.values(), overwritten) else stores


def may_load_twice(values, loads: list[UOp]) -> bool:
    """Whether tinygrad may load some of these again under a condition, and so after they are overwritten."""
    conditional = (s for u in UOp.sink(*values).toposort() if u.op is Ops.WHERE for s in u.src[1:])
    for value in conditional:
        while value.op is Ops.CAST:
            value = value.src[0]
        if value in loads:
            return True
    return False


def _call(group: Kernel, buffers: list[UOp], unread: set[UOp]) -> Call:
    """The merged kernel. What nobody else reads is not stored."""
    stores = [e.store(value) for e, value in group.stores.items() if buffers[e.src[0].arg.slot] not in unread]
    body = UOp.group(*stores).end(*group.loops)
    used = list(dict.fromkeys(u.arg.slot for u in body.toposort() if u.op is Ops.PARAM))
    body = body.substitute(_renumbered(body, {slot: i for i, slot in enumerate(used)}), walk=True)
    reads, writes = slots(sink := UOp.sink(body, arg=KernelInfo()))
    call = sink.call(*(arguments := [buffers[slot] for slot in used]))
    return Call(call, {arguments[i] for i in reads}, {arguments[i] for i in writes})
