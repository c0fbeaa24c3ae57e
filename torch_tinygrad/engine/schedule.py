"""Schedules a graph with tinygrad: values to kernels, in the order that in-place writes need: whoever reads an older
version of a buffer must run before the next is written (`order.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tinygrad.helpers import Context
from tinygrad.schedule import create_linear_with_vars
from tinygrad.tensor import transform_to_call
from tinygrad.uop.ops import UOp

from torch_tinygrad.target import target
from torch_tinygrad.values.blocks import is_placement
from torch_tinygrad.values.finish import Finished
from torch_tinygrad.values.graph import Graph

from . import choices
from .kernels import compiled
from .merge import merged
from .order import Call, dependencies, in_order, with_accesses
from .overwrite import replaceable, with_one_name

# What makes kernels of calls' expressions.
Compiled = Callable[[list[UOp]], list[UOp]]


@dataclass
class Schedule:
    """Compiled calls in order, and who is who among their buffers (as in `Finished`)."""

    graph: Graph
    stores: list[UOp]
    inputs: dict[UOp, int]
    outputs: dict[UOp, int]
    calls: list[Call]


def schedule(graph: Graph, compiled: Compiled = compiled) -> Schedule:
    finished = graph.finish()
    calls = _calls(graph, finished) if finished.stores else []
    # Results may lie where the values they replace lay.
    inputs, outputs = dict(finished.inputs), dict(finished.outputs)
    for buffer in replaceable(calls, finished.replacing, inputs):
        inputs[buffer] = outputs.pop(buffer)
    calls = [with_one_name(call, inputs) for call in calls]
    programs = compiled([call.uop for call in calls])
    calls = [replace(call, uop=program) for call, program in zip(calls, programs, strict=True)]
    return Schedule(graph, finished.stores, inputs, outputs, calls)


def _calls(graph: Graph, finished: Finished) -> list[Call]:
    """The kernels, as expressions, and the other steps that carry out the stores, in order."""
    choices.apply()
    with Context(NO_MEMORY_PLANNER=1):
        call, _ = transform_to_call(UOp.sink(*finished.stores))
        linear, variables = create_linear_with_vars(call)
    assert not variables
    calls = [with_accesses(uop, graph) for uop in linear.src]
    lasting = {*finished.inputs, *finished.outputs}
    calls, before = in_order(calls, dependencies(calls, finished.older), lasting)
    names = {name: versions[0] for name, versions in finished.older.items()}
    calls = merged(calls, before, names, lasting, target(graph.device))
    return [call for call in calls if not is_placement(call.uop)]  # there is nothing to run: they made an order
