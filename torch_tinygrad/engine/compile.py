"""Compiles a recorded trace into a program: the one place where the rooms meet."""

from __future__ import annotations

import _thread
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch_tinygrad.lower.complex import lowering_of
from torch_tinygrad.lower.registry import LOWERINGS
from torch_tinygrad.target import target
from torch_tinygrad.trace.addends import without_addends
from torch_tinygrad.trace.coalesce import drop_dead, forward_copies
from torch_tinygrad.trace.convolutions import as_products
from torch_tinygrad.trace.decompose import take_apart
from torch_tinygrad.trace.forms import reduce_forms
from torch_tinygrad.trace.nodes import Node, Region, Trace
from torch_tinygrad.trace.recurrent import expand_layers
from torch_tinygrad.trace.reroll import reroll
from torch_tinygrad.trace.reuse import shared_results
from torch_tinygrad.values.graph import NodeError, build, can_lift
from torch_tinygrad.values.sequence import can_sequence

from . import contractions, host, kernels, remembered, remote
from .devices import device_name
from .order import Cycle
from .schedule import Compiled, Schedule, schedule


def tiny_graph(raw: Trace, varying: set[int], device: str, simplify: bool = True, in_place: bool = True):
    is_step = contractions.prefers_aten
    storages = list(raw.storages)
    trace = expand_layers(Trace(reduce_forms(raw.nodes, storages), storages, raw.numbers))
    trace = take_apart(trace, lambda node: is_step(node) or lowering_of(node) is not None)
    if target(device).shares_host_memory:  # libraries of GPUs add on the way, and take convolutions as they are
        trace = without_addends(as_products(trace, is_step), is_step)
    if simplify:
        trace = reroll(forward_copies(drop_dead(trace)), can_lift=can_lift, can_sequence=can_sequence)
    return build(trace, varying, device, is_step, _shared(trace, device, is_step), in_place)


def _shared(trace: Trace, device: str, is_step: Callable[[Node], bool]) -> set[tuple[int, int]]:
    """Results that several kernels would each compute, by what lowerings say of their operators."""
    usual = 1 if target(device).has_groups else 2
    fuses = {name for name, lowering in LOWERINGS.items() if lowering.fuses}
    twice = {name for name, lowering in LOWERINGS.items() if lowering.reads_twice}
    return shared_results(trace, is_step, fuses.__contains__, lambda op: 2 if op in twice else usual)


def scheduled(raw: Trace, varying: set[int], device: str, compiled: Compiled = kernels.compiled) -> Schedule:
    """The schedule of a trace. Regions that move are looked for within their storage, whose size matters then."""
    moving = {region.storage for region in _regions(raw.nodes) if region.moves >= 0}
    storages = [
        replace(storage, any_size=storage.any_size and s not in moving) for s, storage in enumerate(raw.storages)
    ]
    return _scheduled(replace(raw, storages=storages), varying, device, compiled)


def _regions(part) -> Iterator[Region]:
    if isinstance(part, (list, tuple)):
        for inner in part:
            yield from _regions(inner)
    elif isinstance(part, Region):
        yield part


def _scheduled(raw: Trace, varying: set[int], device: str, compiled: Compiled) -> Schedule:
    def graph(**options):
        try:
            return tiny_graph(raw, varying, device, **options)
        except NodeError as error:
            if error.tiny_node >= 0:
                raise
            # A batched node stands for many recorded ones: without batching, the one to blame has a number.
            return tiny_graph(raw, varying, device, simplify=False, **options)

    try:
        return schedule(graph(), compiled)
    except Cycle:
        return schedule(graph(in_place=False), compiled)


def compile_trace(raw: Trace, varying: list[int], device_index: int):
    """The program of a trace. A node that cannot be lowered raises NodeError with the number of the recorded node."""
    with compiling():
        device = device_name(device_index)
        if not target(device).shares_host_memory:
            return remote.assemble(scheduled(raw, set(varying), device))
        program = host.assemble(scheduled(raw, set(varying), device))
        program.load()
        return program


@contextmanager
def compiling() -> Iterator[None]:
    """Compiling makes millions of objects that live as long as it does: the collector would look at all of them. Python
    drops an interrupt that comes while one of them is finalised: it is sent again."""
    enabled, shown = gc.isenabled(), sys.unraisablehook

    def unraisable(raised: sys.UnraisableHookArgs) -> None:
        if raised.exc_type is KeyboardInterrupt:
            threading.Timer(0.001, _thread.interrupt_main).start()
        else:
            shown(raised)

    gc.disable()
    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = shown
        remembered.trim()
        if enabled:
            gc.enable()
