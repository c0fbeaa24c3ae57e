"""Schedules a graph with tinygrad: values to kernels, storages to buffers, and the order that in-place writes need.

A storage that had a buffer before is written in place where that is safe: its patches, and whole values that depend on
their old elements one by one. Such a write goes to an alias of the buffer, a name that only the writer uses: tinygrad
sees no hazard in it, and the order (whoever reads the old contents runs first) is made here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tinygrad import Tensor
from tinygrad.engine.realize import get_call_arg_uops
from tinygrad.helpers import Context
from tinygrad.schedule import create_linear_with_vars
from tinygrad.tensor import transform_to_call
from tinygrad.uop.ops import GroupOp, Ops, UOp

from torch_tinygrad.lower.graph import Graph
from torch_tinygrad.lower.storages import Flat, Patch, apply
from torch_tinygrad.trace import geometry

from .kernels import compiled


@dataclass
class Schedule:
    """Compiled calls in order, and who is who among their buffers."""

    graph: Graph
    inputs: dict[UOp, int] = field(default_factory=dict)  # buffer, or alias of it → storage it belongs to
    outputs: dict[UOp, int] = field(default_factory=dict)  # buffer → storage that gets it
    aliases: dict[UOp, UOp] = field(default_factory=dict)  # alias → buffer
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


def depends_elementwise(value: UOp, view: UOp) -> bool:
    """Whether every path from `value` to the buffer under `view` leads through `view` itself, and only through
    operations that keep elements in place: then storing the value over the view reads nothing already overwritten."""
    buffer, wanted = view.base, view
    while wanted.op is Ops.RESHAPE:
        wanted = wanted.src[0]
    reaches: dict[UOp, bool] = {}
    safe: dict[UOp, bool] = {}
    for u in value.toposort():
        reaches[u] = u is buffer or any(reaches[s] for s in u.src)
        if not reaches[u] or u is wanted:
            safe[u] = True
        elif u.op is Ops.RESHAPE:
            safe[u] = safe[u.src[0]]
        elif u.op in GroupOp.Elementwise:
            safe[u] = all(safe[s] and (not reaches[s] or s.shape == u.shape) for s in u.src)
        else:
            safe[u] = False
    return safe[value]


def schedule(graph: Graph) -> Schedule:
    try:
        return _schedule(graph, in_place=True)
    except Cycle:
        return _schedule(graph, in_place=False)


def _schedule(graph: Graph, in_place: bool) -> Schedule:
    """`in_place=False` writes whole values to new buffers and computes patches aside before any is stored."""
    result = Schedule(graph)
    result.inputs = {flat.buffer: number for number, flat in enumerate(graph.flats) if flat.buffer is not None}
    for number, flat in enumerate(graph.flats):
        if not flat.storage.live or not flat.written:
            continue
        if patches := flat.in_place_patches():
            _store_patches(result, number, flat, patches, in_place)
            continue
        flat.merge_patches()
        assert flat.value is not None
        value = flat.value.uop
        if (made := _made_by_aten(value)) is not None and made.buf_uop not in result.outputs:
            result.outputs[made.buf_uop] = number
            result.stores.append(made)
            continue
        if in_place and _fits(flat) and depends_elementwise(value, flat.buffer):
            target = _alias(result, flat.buffer, number)
        else:
            target = UOp.new_buffer(graph.device, flat.value.shape[0], flat.value.dtype)
            result.outputs[target] = number
        result.stores.append(target.after(target.store(value)))
    result.calls = _ordered(_compiled(result.stores), result)
    return result


def _made_by_aten(value: UOp) -> UOp | None:
    """The state of a buffer that a step of ATen's wrote, if the value is just that: the buffer then is the output."""
    while value.op is Ops.RESHAPE:
        value = value.src[0]
    if value.op is Ops.AFTER and value.src[0].op is Ops.BUFFER and value.src[1].op is Ops.CALL:
        return value if value.src[1].src[0].op is Ops.CUSTOM_FUNCTION else None
    return None


def _fits(flat: Flat) -> bool:
    buffer = flat.buffer
    return buffer is not None and buffer.dtype == flat.value.dtype and buffer.shape == flat.value.uop.shape


def _alias(result: Schedule, buffer: UOp, number: int) -> UOp:
    alias = UOp.new_buffer(buffer.device, buffer.shape[0], buffer.dtype)
    result.aliases[alias] = buffer
    result.inputs[alias] = number
    return alias


def _store_patches(result: Schedule, number: int, flat: Flat, patches: list[Patch], in_place: bool) -> None:
    assert flat.buffer is not None
    state = _alias(result, flat.buffer, number)
    for patch in patches:
        region = patch.region
        if patch.update is not None:
            updated = patch.update(Tensor(state).reshape(region.size)).uop
            if updated.base.op is Ops.AFTER and updated.base.buf_uop is state.buf_uop:
                state = updated.base.reshape((flat.buffer.shape[0],))
                continue
        plan = geometry.read_plan(flat.buffer.shape[0], region.size, region.stride, region.offset)
        assert plan is not None
        value = patch.value
        if not in_place or not depends_elementwise(value.uop, apply(Tensor(flat.buffer), plan).uop):
            value = _held(result, value)
        state = state.after(apply(Tensor(state), plan).uop.store(value.uop))
    result.stores.append(state)


def _held(result: Schedule, value: Tensor) -> Tensor:
    """The value computed aside."""
    buffer = UOp.new_buffer(result.graph.device, value.numel(), value.dtype)
    return Tensor(buffer.after(buffer.store(value.reshape(-1).uop))).reshape(value.shape)


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
    """The calls with every reader of a buffer's old contents before the writer of its alias."""
    if not result.aliases:
        return calls
    touched = [accesses(call, result.graph) for call in calls]
    readers: dict[UOp, list[int]] = {}
    for i, (reads, _) in enumerate(touched):
        for buffer in reads:
            readers.setdefault(buffer, []).append(i)
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
            if buffer in result.aliases:
                before += readers.get(result.aliases[buffer], [])
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
