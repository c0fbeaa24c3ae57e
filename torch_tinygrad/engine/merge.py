"""Kernels that loop over the same elements become one kernel with several results.

tinygrad's kernels write one result each. An optimizer's step then reads its gradients and moments once for every result
it leaves; in one kernel each is read once, and what one result needs of another never leaves the registers. Sums over
the same elements, such as a norm's gradients, share one pass in the same way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tinygrad.engine.realize import get_call_arg_uops
from tinygrad.uop.ops import KernelInfo, Ops, UOp

from torch_tinygrad.target import Target

from .elements import Body, body_of, sums_are_side_by_side
from .order import Call, kernel_call, renumbered

# Operations that a kernel may have, as the time that tinygrad takes for one grows with their square, and groups that a
# kernel is tried with.
_MOST_OPERATIONS = 500
_MOST_TRIES = 8


@dataclass(eq=False)
class Kernel:
    """Buffers have the same number (a PARAM's slot) in all kernels, and loops are numbered in order, so that equal
    elements and equal values are the same UOp."""

    turn: int  # when the call that it is runs
    members: list[int]
    body: Body


def merged(
    calls: list[Call], before: list[set[int]], same: dict[UOp, UOp], kept: set[UOp], device: Target
) -> list[Call]:
    """The calls with kernels merged, those that sum too unless groups of threads sum up one at a time. `before` says
    which calls each one must follow, `same` which buffer a version of one is, and `kept` which buffers are read after
    the program."""
    buffers: list[UOp] = []
    group_of: dict[int, Kernel] = {}
    users: dict[UOp, list[Kernel]] = defaultdict(list)

    def memory(element: UOp) -> UOp:
        buffer = buffers[element.src[0].arg.slot]
        return same.get(buffer, buffer)

    for kernel in _candidates(calls, buffers, with_sums=not device.has_groups):
        (i,) = kernel.members
        loops = (*kernel.body.loops, *kernel.body.sums)
        own = {load for load in kernel.body.loads if all(r in load.ranges for r in loops)} | kernel.body.stores.keys()
        for group in {id(g): g for element in own for g in users[element][-_MOST_TRIES:]}.values():
            turns = (group_of[j].turn if j in group_of else j for j in before[i] if j not in group.members)
            if all(turn < group.turn for turn in turns) and (
                body := _joined(group.body, kernel.body, memory, device.most_buffers)
            ):
                group.body = body
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
        elif merged_into.turn == i:
            inside = set(merged_into.members)
            stored = {buffers[element.src[0].arg.slot] for element in merged_into.body.stores}
            unread = {b for b in stored if b not in kept and not readers[b] - inside}
            result.append(_call(merged_into.body, buffers, unread))
    return result


def _candidates(calls: list[Call], buffers: list[UOp], with_sums: bool) -> Iterator[Kernel]:
    """Kernels that share a buffer with another one of the same loops."""
    found: dict[int, tuple[tuple[UOp, ...], list[UOp], Body]] = {}
    for i, call in enumerate(calls):
        if (body := body_of(call.uop.src[0])) is not None and (with_sums or not body.sums):
            found[i] = (tuple(r.src[0] for r in body.loops), get_call_arg_uops(call.uop), body)
    uses = Counter((sizes, buffer) for sizes, arguments, _ in found.values() for buffer in set(arguments))
    numbers: dict[UOp, int] = {}
    for i, (sizes, arguments, body) in found.items():
        if all(b.op is Ops.BUFFER for b in arguments) and any(uses[sizes, b] > 1 for b in arguments):
            for buffer in arguments:
                if buffer not in numbers:
                    numbers[buffer] = len(buffers)
                    buffers.append(buffer)
            yield Kernel(i, [i], _numbered(body, [numbers[b] for b in arguments]))


def _numbered(body: Body, numbers: list[int]) -> Body:
    renamed = {r: r.replace(arg=(axis, r.arg[-1])) for axis, r in enumerate((*body.loops, *body.sums))}
    stores = UOp.sink(*(e.store(value) for e, value in body.stores.items()))
    stores = stores.substitute(renamed | renumbered(stores, numbers), walk=True)
    sums = tuple(renamed[r] for r in body.sums)
    reduces = {u: u.replace(src=(u.src[0], *sums)) for u in stores.toposort() if u.op is Ops.REDUCE}
    ordered = dict(s.src for s in stores.substitute(reduces).src)
    return Body(tuple(renamed[r] for r in body.loops), sums, ordered)


def _joined(a: Body, b: Body, memory: Callable[[UOp], UOp], most_buffers: int) -> Body | None:
    """Both in one, where running them element by element gives what running one after the other does."""
    stores = a.stores | {element: value.substitute(a.stores, walk=True) for element, value in b.stores.items()}
    body = Body(a.loops, a.sums or b.sums, stores)
    if a.loops != b.loops or (b.sums and b.sums != body.sums) or len(stores) < len(a.stores) + len(b.stores):
        return None
    parts = UOp.sink(*stores.values()).toposort()
    if len(parts) > _MOST_OPERATIONS or not sums_are_side_by_side(parts, body.sums):
        return None
    if len({memory(element) for element in (*body.loads, *stores)}) > most_buffers:
        return None
    return body if body.overwrites_in_turn(memory) else None


def _call(body: Body, buffers: list[UOp], unread: set[UOp]) -> Call:
    """The merged kernel. What nobody else reads is not stored."""
    stores = [e.store(value) for e, value in body.stores.items() if buffers[e.src[0].arg.slot] not in unread]
    return kernel_call(UOp.sink(UOp.group(*stores).end(*body.loops), arg=KernelInfo()), buffers)
