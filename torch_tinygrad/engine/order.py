"""The order of a schedule's calls: who reads and writes which buffers, and who must run before whom.

Versions of a buffer are different names of the same memory (`values/in_place.py`): whoever uses an older version runs
before the writer of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import count

from tinygrad.engine.realize import get_call_arg_uops
from tinygrad.uop.ops import Ops, UOp

from torch_tinygrad.kernels.threads import unshaped
from torch_tinygrad.trace.decisions import decide
from torch_tinygrad.values.blocks import is_placement
from torch_tinygrad.values.graph import Graph


class Cycle(Exception):
    """Two in-place writes each want to run after the other."""


@dataclass
class Call:
    """A step of a schedule: a kernel, a copy or a step of ATen's."""

    uop: UOp
    reads: set[UOp]
    writes: set[UOp]


def base_buffer(uop: UOp) -> tuple[UOp, int]:
    """The buffer a kernel argument lies in, and its byte offset there."""
    whole = unshaped(uop)
    if whole.op is Ops.BUFFER:
        return whole, 0
    view = uop.contiguous_view()
    if view is None:
        raise RuntimeError(f"a kernel argument that is no buffer: {uop.op}")
    buffer, offset = view
    return buffer, int(offset) * buffer.dtype.itemsize


def with_accesses(uop: UOp, graph: Graph) -> Call:
    buffers = [base_buffer(b)[0] for b in get_call_arg_uops(uop)]
    kind = uop.src[0]
    if kind.op is Ops.SINK:
        reads, writes = accesses(kind)
        return Call(uop, {buffers[i] for i in reads}, {buffers[i] for i in writes})
    is_step = kind.op is Ops.CUSTOM_FUNCTION and not is_placement(uop)
    outs = graph.step(uop).count_results() if is_step else 1
    return Call(uop, set(buffers[outs:]), set(buffers[:outs]))


def accesses(kernel: UOp) -> tuple[set[int], set[int]]:
    """The arguments that a kernel reads, and those it writes."""
    reads: set[int] = set()
    writes: set[int] = set()
    for u in kernel.toposort():
        for i, s in enumerate(u.src):
            if s.op in (Ops.INDEX, Ops.SHRINK) and (buffer := s.src[0].buf_uop).op is Ops.PARAM:
                (writes if u.op is Ops.STORE and i == 0 else reads).add(buffer.arg.slot)
    return reads, writes


def kernel_call(kernel: UOp, buffers: list[UOp]) -> Call:
    """A call of a kernel with those of the buffers, by the numbers it knows them by, that it uses."""
    used = list(dict.fromkeys(u.arg.slot for u in kernel.toposort() if u.op is Ops.PARAM))
    kernel = kernel.substitute(renumbered(kernel, {number: i for i, number in enumerate(used)}), walk=True)
    arguments = [buffers[number] for number in used]
    reads, writes = accesses(kernel)
    return Call(kernel.call(*arguments), {arguments[i] for i in reads}, {arguments[i] for i in writes})


def renumbered(kernel: UOp, numbers: Sequence[int] | dict[int, int]) -> dict[UOp, UOp]:
    """For each buffer that a kernel uses, the same by its new number."""
    params = [u for u in kernel.toposort() if u.op is Ops.PARAM]
    return {u: u.replace(arg=replace(u.arg, slot=numbers[u.arg.slot])) for u in params}


def dependencies(calls: list[Call], older: dict[UOp, list[UOp]]) -> list[set[int]]:
    """For each call, those it must run after. `older` names the versions of a buffer before a version."""
    users: dict[UOp, list[int]] = {}
    for i, call in enumerate(calls):
        for buffer in call.reads | call.writes:
            users.setdefault(buffer, []).append(i)
    before: list[set[int]] = []
    last_writer: dict[UOp, int] = {}
    readers_since: dict[UOp, list[int]] = {}
    for i, call in enumerate(calls):
        mine = {last_writer[buffer] for buffer in call.reads if buffer in last_writer}
        for buffer in call.reads:
            readers_since.setdefault(buffer, []).append(i)
        for buffer in call.writes:
            mine.update(readers_since.pop(buffer, []))
            mine.update([last_writer[buffer]] if buffer in last_writer else [])
            for version in older.get(buffer, []):
                mine.update(users.get(version, []))
            last_writer[buffer] = i
        before.append(mine - {i})
    return before


def in_order(calls: list[Call], before: list[set[int]], lasting: set[UOp]) -> tuple[list[Call], list[set[int]]]:
    """The calls with each after those it must follow: next comes the one that leaves the fewest bytes of temporaries
    alive, and of equal ones the one whose operands are the latest, likely to be in the processor's caches. `lasting`
    buffers are no temporaries. With the calls, `before` for their new turns."""
    after: list[list[int]] = [[] for _ in calls]
    for i, mine in enumerate(before):
        for j in mine:
            after[j].append(i)
    users: dict[UOp, set[int]] = {}
    for i, call in enumerate(calls):
        for buffer in (call.reads | call.writes) - lasting:
            users.setdefault(buffer, set()).add(i)
    made: set[UOp] = set()

    def growth(i: int) -> int:
        taken = sum(bytes_of(b) for b in calls[i].writes if b in users and b not in made)
        return taken - sum(bytes_of(b) for b in calls[i].reads | calls[i].writes if users.get(b) == {i})

    turn = count(0, -1)
    waiting = [len(mine) for mine in before]
    ready = [(growth(i), next(turn), i) for i in range(len(calls) - 1, -1, -1) if waiting[i] == 0]
    heapify(ready)
    order: list[int] = []
    done: set[int] = set()
    while ready:
        _, _, i = heappop(ready)
        if i in done:
            continue
        done.add(i)
        order.append(i)
        made |= calls[i].writes
        for buffer in calls[i].reads | calls[i].writes:
            left = users.get(buffer, set())
            left.discard(i)
            if len(left) == 1 and waiting[last := next(iter(left))] == 0:
                heappush(ready, (growth(last), next(turn), last))
        for j in reversed(after[i]):
            waiting[j] -= 1
            if waiting[j] == 0:
                heappush(ready, (growth(j), next(turn), j))
    if len(order) != len(calls):
        raise Cycle
    order = decide("order", order)
    turns = {i: turn for turn, i in enumerate(order)}
    return [calls[i] for i in order], [{turns[j] for j in before[i]} for i in order]


def bytes_of(buffer: UOp) -> int:
    return buffer.max_numel() * buffer.dtype.itemsize
