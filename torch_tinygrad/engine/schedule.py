"""Schedules a graph with tinygrad: values to kernels, storages to buffers, and the order that in-place writes need.

A storage that had a buffer before is written in place where that is safe: its patches, and whole values that depend on
their old elements one by one. Every such write makes a new version of the buffer under a name of its own
(`values/in_place.py`); whoever reads an older version must run first (`order.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tinygrad.helpers import Context
from tinygrad.schedule import create_linear_with_vars
from tinygrad.tensor import transform_to_call
from tinygrad.uop.ops import UOp

from torch_tinygrad.target import target
from torch_tinygrad.values.blocks import is_placement
from torch_tinygrad.values.graph import Graph
from torch_tinygrad.values.storages import Flat

from . import choices
from .kernels import compiled
from .merge import merged
from .order import Call, dependencies, in_order, with_accesses
from .overwrite import replaceable, with_one_name

# What makes kernels of calls' expressions.
Compiled = Callable[[list[UOp]], list[UOp]]


@dataclass
class Schedule:
    """Compiled calls in order, and who is who among their buffers."""

    graph: Graph
    inputs: dict[UOp, int] = field(default_factory=dict)  # version of a buffer → storage it belongs to
    outputs: dict[UOp, int] = field(default_factory=dict)  # buffer → storage that gets it
    older: dict[UOp, list[UOp]] = field(default_factory=dict)  # version of a buffer → those before it
    stores: list[UOp] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


def schedule(graph: Graph, compiled: Compiled = compiled) -> Schedule:
    result = Schedule(graph)
    kept = {number: flat for number, flat in enumerate(graph.flats) if flat.storage.live and flat.written}
    for flat in kept.values():  # before any buffer is a storage's: it may become part of another
        flat.settle_patches()
    for number, flat in enumerate(graph.flats):
        if number in kept:
            _store(result, number, flat)
        if flat.versions is not None:
            result.stores += flat.versions.states  # a version's name does not tell what the ones before it stored
            names = flat.versions.names
            result.inputs |= dict.fromkeys(names, number)
            result.older |= {name: names[:i] for i, name in enumerate(names) if i}
    result.calls = _calls(result, compiled)
    return result


def _store(result: Schedule, number: int, flat: Flat) -> None:
    """Adds what leaves the storage's last value in a buffer."""
    assert flat.value is not None
    value, versions = flat.value.uop, flat.versions
    if versions is not None and value is versions.state:
        return
    made = result.graph.space.made_aside(value)
    if made is not None and made.buf_uop not in result.outputs and made.buf_uop not in result.graph.space.inside:
        result.outputs[made.buf_uop] = number
        result.stores.append(made)
    elif flat.in_place and _fits(flat) and versions.depends_elementwise(value, versions.state):
        version = versions.begin()
        version.state = version.state.after(version.state.store(value))
        versions.finish(version)
    else:
        target = UOp.new_buffer(result.graph.device, flat.value.shape[0], flat.value.dtype)
        result.outputs[target] = number
        result.stores.append(target.after(target.store(value)))


def _reuse_buffers(result: Schedule, calls: list[Call]) -> None:
    """Lets results lie where the values they replace lay."""
    inside = result.graph.space.inside
    wholes = {whole for whole, _ in inside.values()}  # calls use them by their parts' names as well
    apart = {*result.inputs, *result.outputs} - wholes - inside.keys()
    candidates = {
        buffer: number
        for buffer, number in result.outputs.items()
        if _fits(flat := result.graph.flats[number]) and apart.issuperset({buffer, *flat.versions.names})
    }
    for buffer in replaceable(calls, candidates, result.inputs):
        result.inputs[buffer] = result.outputs.pop(buffer)


def _fits(flat: Flat) -> bool:
    """Whether the value has the type and the size of the buffer that the storage had."""
    buffer = flat.versions.buffer if flat.versions is not None else None
    return buffer is not None and buffer.dtype == flat.value.dtype and buffer.shape == flat.value.uop.shape


def _calls(result: Schedule, compiled: Compiled) -> list[Call]:
    """The compiled kernels and other steps that carry out the stores."""
    if not result.stores:
        return []
    choices.apply()
    with Context(NO_MEMORY_PLANNER=1):
        call, _ = transform_to_call(UOp.sink(*result.stores))
        linear, variables = create_linear_with_vars(call)
    assert not variables
    calls = [with_accesses(uop, result.graph) for uop in linear.src]
    lasting = {*result.inputs, *result.outputs}
    calls, before = in_order(calls, dependencies(calls, result.older), lasting)
    names = {name: versions[0] for name, versions in result.older.items()}
    calls = merged(calls, before, names, lasting, target(result.graph.device))
    calls = [call for call in calls if not is_placement(call.uop)]  # there is nothing to run: they made an order
    _reuse_buffers(result, calls)
    calls = [with_one_name(call, result.inputs) for call in calls]
    programs = compiled([call.uop for call in calls])
    return [replace(call, uop=program) for call, program in zip(calls, programs, strict=True)]
