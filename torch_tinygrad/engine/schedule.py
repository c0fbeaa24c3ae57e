"""Schedules a graph with tinygrad: values to kernels, storages to buffers, and the order that in-place writes need.

A storage that had a buffer before is written in place where that is safe: its patches, and whole values that depend on
their old elements one by one. Every such write makes a new version of the buffer under a name of its own
(`lower/in_place.py`); whoever reads an older version must run first, and that order is made here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tinygrad.engine.realize import get_call_arg_uops
from tinygrad.helpers import Context
from tinygrad.schedule import create_linear_with_vars
from tinygrad.tensor import transform_to_call
from tinygrad.uop.ops import Ops, UOp

from torch_tinygrad.lower.graph import Graph
from torch_tinygrad.lower.storages import Flat

from .kernels import compiled


@dataclass
class Schedule:
    """Compiled calls in order, and who is who among their buffers."""

    graph: Graph
    inputs: dict[UOp, int] = field(default_factory=dict)  # version of a buffer → storage it belongs to
    outputs: dict[UOp, int] = field(default_factory=dict)  # buffer → storage that gets it
    older: dict[UOp, list[UOp]] = field(default_factory=dict)  # version of a buffer → those before it
    stores: list[UOp] = field(default_factory=list)
    calls: list[UOp] = field(default_factory=list)


class Cycle(Exception):
    """Two in-place writes each want to run after the other."""


def base_buffer(uop: UOp) -> tuple[UOp, int]:
    """The buffer a kernel argument lies in, and its byte offset there."""
    view = uop.contiguous_view()
    if view is None:
        raise RuntimeError(f"a kernel argument that is no buffer: {uop.op}")
    buffer, offset = view
    return buffer, int(offset) * buffer.dtype.itemsize


def schedule(graph: Graph) -> Schedule:
    result = Schedule(graph)
    for number, flat in enumerate(graph.flats):
        if flat.storage.live and flat.written:
            _store(result, number, flat)
        if flat.versions is not None:
            result.stores += flat.versions.states  # a version's name does not tell what the ones before it stored
            names = flat.versions.names
            result.inputs |= dict.fromkeys(names, number)
            result.older |= {name: names[:i] for i, name in enumerate(names) if i}
    result.calls = _ordered(_compiled(result.stores), result)
    return result


def _store(result: Schedule, number: int, flat: Flat) -> None:
    """Adds what leaves the storage's last value in a buffer."""
    if flat.in_place_patches():
        flat.store_patches()
    flat.merge_patches()
    assert flat.value is not None
    value, versions = flat.value.uop, flat.versions
    if versions is not None and value is versions.state:
        return
    if (made := _made_aside(value)) is not None and made.buf_uop not in result.outputs:
        result.outputs[made.buf_uop] = number
        result.stores.append(made)
    elif _fits(flat) and versions.depends_elementwise(value, versions.state):
        version = versions.begin()
        version.state = version.state.after(version.state.store(value))
        versions.finish(version)
    else:
        target = UOp.new_buffer(result.graph.device, flat.value.shape[0], flat.value.dtype)
        result.outputs[target] = number
        result.stores.append(target.after(target.store(value)))


def _made_aside(value: UOp) -> UOp | None:
    """The state of the buffer that the value was stored to, by a kernel or a step of ATen's, where it was: that buffer
    can be the storage's."""
    while value.op is Ops.RESHAPE:
        value = value.src[0]
    if value.op is not Ops.AFTER or value.src[0].op is not Ops.BUFFER:
        return None
    made = value.src[1]
    is_step = made.op is Ops.CALL and made.src[0].op is Ops.CUSTOM_FUNCTION
    return value if is_step or (made.op is Ops.STORE and made.src[0] is value.src[0]) else None


def _fits(flat: Flat) -> bool:
    """Whether the value may be written over the buffer that the storage had."""
    buffer = flat.versions.buffer if flat.versions is not None and flat.in_place else None
    return buffer is not None and buffer.dtype == flat.value.dtype and buffer.shape == flat.value.uop.shape


def _compiled(stores: list[UOp]) -> list[UOp]:
    """The kernels that carry out these stores."""
    if not stores:
        return []
    with Context(NO_MEMORY_PLANNER=1):
        call, _ = transform_to_call(UOp.sink(*stores))
        linear, variables = create_linear_with_vars(call)
    assert not variables
    return compiled(list(linear.src))


def accesses(call: UOp, graph: Graph) -> tuple[set[UOp], set[UOp]]:
    """The buffers a call reads, and those it writes."""
    buffers = [base_buffer(b)[0] for b in get_call_arg_uops(call)]
    kind = call.src[0]
    if kind.op is Ops.PROGRAM:
        return {buffers[i] for i in kind.arg.ins}, {buffers[i] for i in kind.arg.outs}
    if kind.op is Ops.CUSTOM_FUNCTION:
        outs = graph.steps[int(kind.arg.partition(":")[2])].count_results()
        return set(buffers[outs:]), set(buffers[:outs])
    return set(buffers[1:]), set(buffers[:1])


def _ordered(calls: list[UOp], result: Schedule) -> list[UOp]:
    """The calls with everyone who uses an older version of a buffer before the writer of the next."""
    if not result.older:
        return calls
    touched = [accesses(call, result.graph) for call in calls]
    users: dict[UOp, list[int]] = {}
    for i, (reads, writes) in enumerate(touched):
        for buffer in reads | writes:
            users.setdefault(buffer, []).append(i)
    after: list[set[int]] = [set() for _ in calls]  # who must run after call i
    last_writer: dict[UOp, int] = {}
    readers_since: dict[UOp, list[int]] = {}
    for i, (reads, writes) in enumerate(touched):
        for buffer in reads:
            if buffer in last_writer:
                after[last_writer[buffer]].add(i)
            readers_since.setdefault(buffer, []).append(i)
        for buffer in writes:
            before = [*readers_since.pop(buffer, []), *([last_writer[buffer]] if buffer in last_writer else [])]
            for version in result.older.get(buffer, []):
                before += users.get(version, [])
            for j in before:
                if j != i:
                    after[j].add(i)
            last_writer[buffer] = i
    waiting = [0] * len(calls)
    for followers in after:
        for j in followers:
            waiting[j] += 1
    ready = [i for i in range(len(calls) - 1, -1, -1) if waiting[i] == 0]
    order = []
    while ready:
        i = ready.pop()
        order.append(calls[i])
        for j in sorted(after[i], reverse=True):
            waiting[j] -= 1
            if waiting[j] == 0:
                ready.append(j)
    if len(order) != len(calls):
        raise Cycle
    return order
