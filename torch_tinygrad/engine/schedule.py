"""Schedules a graph with tinygrad: storages to buffers, buffers to slots, values to kernels.

The work has two phases. The first computes values and writes them to new buffers; the second stores patches into
buffers that exist already. Nothing in the first phase reads what the second writes, so no order has to be found.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tinygrad import Tensor
from tinygrad.helpers import Context
from tinygrad.schedule import create_linear_with_vars
from tinygrad.tensor import transform_to_call
from tinygrad.uop.ops import Ops, UOp

from torch_tinygrad.lower.graph import Graph
from torch_tinygrad.lower.storages import apply
from torch_tinygrad.trace import geometry

# Every call of a linear schedule is (what to run, buffers...).
Calls = list[UOp]


@dataclass
class Schedule:
    """Calls in order, and who is who among their buffers."""

    calls: Calls
    inputs: dict[UOp, int]  # buffer → storage it belongs to before the run
    outputs: dict[UOp, int]  # buffer → storage that gets it
    graph: Graph
    order: dict[UOp, int] = field(default_factory=dict)


def _buffers_under(uop: UOp) -> set[UOp]:
    return {u for u in uop.toposort() if u.op is Ops.BUFFER}


def _linear(stores: list[UOp]) -> Calls:
    """The kernels that carry out these stores."""
    if not stores:
        return []
    with Context(NO_MEMORY_PLANNER=1):
        call, _ = transform_to_call(UOp.sink(*stores))
        linear, variables = create_linear_with_vars(call)
    assert not variables
    return list(linear.src)


def schedule(graph: Graph) -> Schedule:
    inputs = {flat.buffer: number for number, flat in enumerate(graph.flats) if flat.buffer is not None}
    outputs: dict[UOp, int] = {}
    first: list[UOp] = []
    patched: list[tuple[UOp, list]] = []
    for number, flat in enumerate(graph.flats):
        if not flat.storage.live or not flat.written:
            continue
        if flat.patches:
            patched.append((flat.buffer, flat.patches))
            continue
        assert flat.value is not None
        target = UOp.new_buffer(graph.device, flat.value.shape[0], flat.value.dtype)
        outputs[target] = number
        first.append(target.after(target.store(flat.value.uop)))

    # A patch that reads a buffer which the second phase writes is computed in the first.
    written = {buffer for buffer, _ in patched}
    second: list[UOp] = []
    for buffer, patches in patched:
        state = buffer
        for region, value in patches:
            value = value.contiguous() if value.uop.op is Ops.CONST else value
            if _buffers_under(value.uop) & written:
                held = UOp.new_buffer(graph.device, value.numel(), value.dtype)
                first.append(held.after(held.store(value.reshape(-1).uop)))
                value = Tensor(held).reshape(value.shape)
            plan = geometry.read_plan(buffer.shape[0], region.size, region.stride, region.offset)
            assert plan is not None
            view = apply(Tensor(state), plan).uop
            state = state.after(view.store(value.uop))
        second.append(state)
    return Schedule([*_linear(first), *_linear(second)], inputs, outputs, graph)
