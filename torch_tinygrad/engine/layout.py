"""Where the buffers of a schedule lie: what programs of the host and programs of other devices have in common."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tinygrad.device import Buffer
from tinygrad.engine.realize import get_call_arg_uops
from tinygrad.uop.ops import UOp, buffers

from torch_tinygrad.trace.decisions import decide, is_one_of_many

from .memory import AFTER, BEFORE, Host, plan, shared_blocks
from .order import base_buffer, bytes_of
from .schedule import Schedule

# The kinds of slots, numbered as the C++ runner numbers them.
INPUT, OUTPUT, ARENA, FLOATS, INTS, CONSTANT, NOWHERE, MADE, SIZES, TAKEN = range(10)


class Slot(NamedTuple):
    """A kernel's operand: in which input, output or constant, and how many bytes into it."""

    kind: int
    number: int
    offset: int


class Operand(NamedTuple):
    slot: Slot
    nbytes: int


@dataclass
class Layout:
    calls: list[tuple[UOp, list[Operand]]]
    inputs: list[int]  # storages read, or written in place
    written: list[int]  # which of them are written
    outputs: list[int]  # storages that get a new buffer
    output_bytes: list[int]
    temporaries: list[int]  # bytes of each block that temporaries lie in
    blocks: list[tuple[int, int]] = field(default_factory=list)  # for each temporary, where sizes vary: block, bytes
    taken: list[tuple[int, int]] = field(default_factory=list)  # inputs that temporaries lie in: which, bytes
    constants: list[Buffer] = field(default_factory=list)
    adopted: list[tuple[int, int]] = field(default_factory=list)  # storages that get a made buffer, and which
    releases: list[list[int]] = field(default_factory=list)  # for each call, the made buffers it is the last to use


def outermost(buffer: UOp, offset: int, inside: dict[UOp, tuple[UOp, int]]) -> tuple[UOp, int]:
    """The buffer that is part of no other, and where in it this is."""
    while buffer in inside:
        buffer, start = inside[buffer]
        offset += start
    return buffer, offset


def lay_out(
    schedule: Schedule, views: bool = True, made: Sequence[UOp] = (), free: Collection[int] | None = None
) -> Layout:
    """Gives every operand of every call its slot. Temporaries share one block, or several where the device has no
    `views` of parts of a buffer; buffers that are `made` while the program runs have slots of their own. Where it is
    said which storages are `free`, as nobody needs them once the program has read them, temporaries lie there and in
    outputs."""
    graph = schedule.graph
    calls = [(call.uop, get_call_arg_uops(call.uop)) for call in schedule.calls]
    based = [[outermost(*base_buffer(b), graph.space.inside) for b in arguments] for _, arguments in calls]
    numbers = {graph.float_input: Slot(FLOATS, 0, 0), graph.int_input: Slot(INTS, 0, 0)}
    used = {buffer for arguments in based for buffer, _ in arguments}
    inputs = list(dict.fromkeys(number for buffer, number in schedule.inputs.items() if buffer in used))
    position = {number: i for i, number in enumerate(inputs)}
    made_at = {b: Slot(MADE, i, 0) for i, b in enumerate(made)}
    outputs = {b: number for b, number in schedule.outputs.items() if b not in made_at}
    output_bytes = [graph.flats[number].storage.nbytes for number in outputs.values()]
    written = {schedule.inputs[b] for call in schedule.calls for b in call.writes if b in schedule.inputs}
    layout = Layout([], inputs, sorted(position[n] for n in written), list(outputs.values()), output_bytes, [])
    slots: dict[UOp | None, Slot] = dict(numbers)
    slots |= {b: Slot(INPUT, position[number], 0) for b, number in schedule.inputs.items() if b in used}
    slots |= {b: Slot(OUTPUT, i, 0) for i, b in enumerate(outputs)} | made_at
    layout.adopted = [(schedule.outputs[b], i) for i, b in enumerate(made) if b in schedule.outputs]

    lifetimes: dict[UOp, list[int]] = {}
    last_use = {buffer: step for step, arguments in enumerate(based) for buffer, _ in arguments}
    layout.releases = [[] for _ in calls]
    for i, buffer in enumerate(made):
        if buffer not in schedule.outputs:
            layout.releases[last_use[buffer]].append(i)
    for step, arguments in enumerate(based):
        for buffer, _ in arguments:
            if buffer in slots:
                continue
            if buffer in buffers:
                slots[buffer] = Slot(CONSTANT, len(layout.constants), 0)
                layout.constants.append(buffer.buffer.ensure_allocated())
            else:
                lifetimes.setdefault(buffer, [step, step])[1] = step
    spans = [(first, last, bytes_of(b)) for b, (first, last) in lifetimes.items()]
    if is_one_of_many():
        blocks = decide("blocks", shared_blocks(spans)[0])
        layout.blocks = [(block, nbytes) for block, (_, _, nbytes) in zip(blocks, spans, strict=True)]
        slots |= {b: Slot(ARENA, block, 0) for b, block in zip(lifetimes, blocks, strict=True)}
    elif views:
        hosts = [] if free is None else _hosts(layout, slots, based, schedule, free)
        places, total = plan(spans, [host for _, host in hosts])
        layout.temporaries = [total] if total else []
        needed: dict[int, int] = {}
        for buffer, (_, _, nbytes), (number, offset) in zip(lifetimes, spans, places, strict=True):
            kind, index, _ = Slot(ARENA, 0, 0) if number is None else hosts[number][0]
            if kind == INPUT:
                needed[index] = max(needed.get(index, 0), offset + nbytes)
                kind, index = TAKEN, list(needed).index(index)
            slots[buffer] = Slot(kind, index, offset)
        layout.taken = list(needed.items())
    else:
        blocks, layout.temporaries = shared_blocks(spans)
        slots |= {b: Slot(ARENA, block, 0) for b, block in zip(lifetimes, blocks, strict=True)}

    for (call, arguments), located in zip(calls, based, strict=True):
        operands = []
        for uop, (buffer, offset) in zip(arguments, located, strict=True):
            kind, number, start = slots[buffer]
            nbytes = min(bytes_of(uop), bytes_of(buffer) - offset)
            operands.append(Operand(Slot(kind, number, start + offset), nbytes))
        layout.calls.append((call, operands))
    return layout


def _hosts(
    layout: Layout,
    slots: dict[UOp | None, Slot],
    based: list[list[tuple[UOp, int]]],
    schedule: Schedule,
    free: Collection[int],
) -> list[tuple[Slot, Host]]:
    """Memory that temporaries may lie in: that of outputs until they are written, and of free storages once they were
    used."""
    first: dict[Slot, int] = {}
    last: dict[Slot, int] = {}
    for step, arguments in enumerate(based):
        for buffer, _ in arguments:
            if (slot := slots.get(buffer)) is not None:
                first.setdefault(slot, step)
                last[slot] = step
    hosts = []
    for i, nbytes in enumerate(layout.output_bytes):
        slot = Slot(OUTPUT, i, 0)
        hosts.append((slot, Host(first.get(slot, BEFORE), AFTER, nbytes)))
    for i, number in enumerate(layout.inputs):
        if number in free:
            slot = Slot(INPUT, i, 0)
            hosts.append((slot, Host(BEFORE, last[slot], schedule.graph.flats[number].storage.nbytes)))
    return hosts
