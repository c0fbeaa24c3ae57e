"""Programs for devices with memory of their own: kernels launched through tinygrad, in its graphs where it has them.

A program's operands are resolved once into a table of (base buffer, offset). A run fills the table with this flush's
buffers and goes through the steps.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from typing import cast

import numpy
import torch
from tinygrad import Device
from tinygrad.device import Buffer
from tinygrad.engine.jit import graph_class
from tinygrad.engine.realize import estimate_uop
from tinygrad.uop.ops import Ops, UOp

from torch_tinygrad import _C
from torch_tinygrad.target import target

from . import cuda, explain
from .aten import LibraryCall, aten_call, has_library_kernel, nbytes
from .contractions import can_be_captured
from .devices import ARENAS, Kept, activate, allocate, device_name, most_kept, write
from .graphs import Batch, Captured
from .layout import ARENA, CONSTANT, FLOATS, INPUT, INTS, OUTPUT, Operand, lay_out
from .marks import LAST_WRITES, Mark, new_mark
from .operands import Copy, Kernel, Numbers, Operands, Step
from .plans import Aten, Constant, Launch, Plan, Unwritable, from_bytes, to_bytes
from .schedule import Schedule

# Kernels in a program's first graph; each further one holds twice as many. The device starts on the first while the
# host prepares the next.
FIRST_BATCH = 32

# Bytes of a result that somebody may well be waiting for, such as a loss: a graph ends where it is ready.
_AWAITED = 8


def plan_of(schedule: Schedule) -> Plan:
    """Gives every operand its slot, and takes out of a schedule what a run needs."""
    graph = schedule.graph
    layout = lay_out(schedule, target(graph.device).has_views)
    plan = Plan(
        layout.inputs,
        layout.outputs,
        layout.output_bytes,
        layout.temporaries,
        graph.floats,
        graph.ints,
        target(graph.device).widest_float.itemsize,
        [bytes(constant.as_memoryview()) for constant in layout.constants],
    )
    first = first_numbers(plan)
    table: dict[tuple[int, int, int], int] = {}

    def number(operand: Operand) -> int:
        (kind, index, offset), nbytes = operand
        return table.setdefault((first[kind] + index, offset, nbytes), len(table))

    operators = explain.operators(schedule)
    for (call, arguments), names in zip(layout.calls, operators, strict=True):
        kind, operands = call.src[0], [number(a) for a in arguments]
        if kind.op is Ops.PROGRAM:
            estimate = estimate_uop(call)
            moved = int(estimate.mem)
            plan.description.append(explain.kernel_line(kind.arg.function_name, estimate, names))
            plan.steps.append(Launch(kind, operands))
        elif kind.op is Ops.CUSTOM_FUNCTION:
            step = graph.step(call)
            moved = sum(map(nbytes, (*step.inputs, *step.results)))
            if step.is_fallback and not has_library_kernel(graph.device, step):
                plan.fallbacks[step.op] = plan.fallbacks.get(step.op, 0) + 1
            plan.description.append(explain.library_line(step, moved))
            plan.steps.append(Aten(step, operands))
        elif kind.op is Ops.COPY and arguments[1].slot.kind == CONSTANT:
            source = arguments[1].slot.number
            moved = len(plan.constants[source])
            plan.description.append(f"copy of a constant: {moved} bytes")
            plan.steps.append(Constant(operands[0], source))
        else:
            raise RuntimeError(f"a step that {graph.device} cannot run: {kind.op}")
        plan.kernels += 1
        plan.bytes_moved += moved
    plan.table = list(table)
    return plan


def first_numbers(plan: Plan) -> dict[int, int]:
    """Base buffers are numbered: inputs, outputs, temporaries, numbers, constants. Where each kind begins."""
    first = {INPUT: 0, OUTPUT: len(plan.inputs)}
    first[ARENA] = first[OUTPUT] + len(plan.outputs)
    first[FLOATS] = first[ARENA] + len(plan.temporaries)
    first[INTS] = first[FLOATS] + 1
    first[CONSTANT] = first[INTS] + 1
    return first


class RemoteProgram:
    """What the runtime asks of a program: storages in and out by number, positions of lifted numbers, counts, `run`."""

    def __init__(self, plan: Plan, device: str):
        self.plan, self.device = plan, device
        self.started = False  # whether the last run came to its first step
        self.times: list[float] = []  # of the steps, microseconds
        self.inputs, self.outputs, self.output_bytes = plan.inputs, plan.outputs, plan.output_bytes
        self.temporaries = plan.temporaries
        self.lifted = [*plan.floats, *plan.ints]
        self.kernels, self.bytes_moved = plan.kernels, plan.bytes_moved
        self.fallbacks, self.description = plan.fallbacks, plan.description
        first = self.first = first_numbers(plan)
        self.operands = Operands(device, plan.table)
        self.single_steps = [self._step(step) for step in plan.steps]
        self.steps = self._together(self.single_steps)
        self.marks = self._marks()
        self.overwritten = [number for number in self._last_writers(self.steps) if number < first[OUTPUT]]

        used = {plan.table[i][0] for step in plan.steps if not isinstance(step, Constant) for i in step.operands}
        for number, constant in enumerate(plan.constants, first[CONSTANT]):
            if number in used:
                write(buffer := allocate(device, len(constant)), memoryview(bytearray(constant)))
                self.operands.set(number, buffer)
        self.kept: Kept | None = None
        self.numbers: list[tuple[slice, Numbers]] = []
        if plan.floats:
            floats = Numbers(device, len(plan.floats), numpy.dtype(f"f{plan.float_bytes}"))
            self.numbers.append((slice(0, len(plan.floats)), floats))
            self.operands.set(first[FLOATS], floats.buffer)
        if plan.ints:
            ints = Numbers(device, len(plan.ints), numpy.dtype(numpy.int64))
            self.numbers.append((slice(len(plan.floats), None), ints))
            self.operands.set(first[INTS], ints.buffer)

    def to_bytes(self) -> bytes | None:
        """What `load` makes the program from again; nothing where there is no form for a part of it."""
        try:
            return to_bytes(self.plan)
        except Unwritable:
            return None

    def _step(self, step: Launch | Constant | Aten) -> Step:
        if isinstance(step, Launch):
            return Kernel(self.device, step.program, step.operands)
        if isinstance(step, Constant):
            return Copy(step.destination, self.plan.constants[step.number])
        return aten_call(self.device, step.step, step.operands)

    def _last_writers(self, steps: list[Step]) -> dict[int, int]:
        """For each input and output that steps write, by the number of its buffer, the last step that does."""
        table, end = self.operands.table, self.first[ARENA]
        return {table[i][0]: k for k, step in enumerate(steps) for i in step.writes if table[i][0] < end}

    def _marks(self) -> dict[int, tuple[Mark, list[int]]]:
        """For steps after which somebody may read: the mark to set, and the buffers that are final then."""
        found: dict[int, tuple[Mark, list[int]]] = {}
        for number, k in self._last_writers(self.steps).items():
            if number < self.first[OUTPUT]:
                continue  # parameters: who reads one does so between steps
            if k not in found:
                if (mark := new_mark(self.device)) is None:
                    break
                found[k] = mark, []
            found[k][1].append(number)
        return found

    def _together(self, steps: list[Step]) -> list[Step]:
        """What the device launches at once, where it has graphs: all up to a number that somebody may wait for."""
        ends = {
            k
            for number, k in self._last_writers(steps).items()
            if number >= self.first[OUTPUT] and self.output_bytes[number - self.first[OUTPUT]] <= _AWAITED
        }
        if target(self.device).library != "cuda" or not any(isinstance(step, LibraryCall) for step in steps):
            return self._batched(steps, ends)
        result: list[Step] = []
        part: list[Step] = []

        def close() -> None:
            batches = self._batched(part, set())
            is_graph = len(part) >= _C.LEAST_GRAPH
            result.extend([Captured(list(part), batches, self.operands.table)] if is_graph else batches)
            part.clear()

        for k, step in enumerate(steps):
            if isinstance(step, Kernel) or (isinstance(step, LibraryCall) and can_be_captured(step.step.op)):
                part.append(step)
                if k in ends:
                    close()
            else:
                close()
                result.append(step)
        close()
        return result

    def _batched(self, steps: list[Step], ends: set[int]) -> list[Step]:
        """Neighbouring kernels together, where the device has graphs; none reaches beyond `ends`."""
        if target(self.device).driver == "WEBGPU":
            return in_passes(self.device, steps)
        if Device[self.device].graph is None:
            return list(steps)
        runner = graph_class(Device[self.device])
        result: list[Step] = []
        batch: list[Kernel] = []
        calls: list[UOp] = []
        size = FIRST_BATCH

        def close() -> None:
            if len(batch) >= _C.LEAST_GRAPH:
                result.append(Batch(self.device, list(batch), list(calls)))
            else:
                result.extend(batch)
            batch.clear()
            calls.clear()

        for k, step in enumerate(steps):
            if isinstance(step, Kernel):
                call = step.as_call(self.device, self.operands.table)
                if runner.supports_uop([Device[self.device]], call):
                    batch.append(step)
                    calls.append(call)
                    if len(batch) == size:
                        close()
                        size *= 2
                    elif k in ends:
                        close()
                    continue
            close()
            result.append(step)
        close()
        return result

    def _new_outputs(self) -> list[Buffer]:
        if self.kept is None and any(isinstance(step, Captured) and step.wanders for step in self.steps):
            if Kept.most * sum(self.output_bytes) <= most_kept():
                self.kept = Kept(self.device, self.output_bytes)
        if self.kept is not None:
            return self.kept.take()
        return [allocate(self.device, nbytes) for nbytes in self.output_bytes]

    def run(self, inputs: list[Buffer], numbers: list[float]) -> list[Buffer]:
        activate(self.device)
        self.started = False
        operands, first = self.operands, self.first
        outputs = self._new_outputs()
        if len(self.temporaries) == 1:
            operands.set_block(first[ARENA], ARENAS.of(self.device, self.temporaries[0]))
        else:
            for i, nbytes in enumerate(self.temporaries):
                operands.set(first[ARENA] + i, allocate(self.device, nbytes))
        for i, buffer in enumerate(inputs):
            operands.set(i, buffer)
        for i, buffer in enumerate(outputs, len(inputs)):
            operands.set(i, buffer)
        for part, array in self.numbers:
            array.set(numbers[part])
        if LAST_WRITES:
            for number in self.overwritten:
                LAST_WRITES.pop(operands.bases[number], None)
        self.started = True
        self.times = []
        with torch.no_grad():
            if steps_are_timed():
                self.times = timed(self.device, self.single_steps, operands)
                operands.release(range(0, first[FLOATS]))
                return outputs
            for k, step in enumerate(self.steps):
                step.run(operands)
                if k in self.marks:
                    mark, written = self.marks[k]
                    mark.set()
                    for number in written:
                        LAST_WRITES[operands.bases[number]] = mark
        operands.release(range(0, first[FLOATS]))
        return outputs


def build_kernels(plan: Plan, device: str) -> None:
    """Has the driver compile the kernels, where it does so when they are loaded or launched, and keep the machine code
    where whoever loads the program finds it. They are run once, on zeros: drivers fit a kernel to its groups then."""
    if not target(device).compiles_late:
        return
    operands, sizes = Operands(device, plan.table), dict[int, int]()
    for base, offset, length in plan.table:
        sizes[base] = max(sizes.get(base, 0), offset + length)
    for base, size in sizes.items():
        write(buffer := allocate(device, size), memoryview(bytearray(size)))
        operands.set(base, buffer)
    for number, constant in enumerate(plan.constants, first_numbers(plan)[CONSTANT]):
        if number in sizes:
            write(operands.bases[number], memoryview(bytearray(constant)))
    kernels = [Kernel(device, s.program, s.operands) for s in plan.steps if isinstance(s, Launch)]
    for step in in_passes(device, kernels) if target(device).driver == "WEBGPU" else kernels:
        step.run(operands)
    Device[device].synchronize()


def in_passes(device: str, steps: Sequence[Step]) -> list[Step]:
    """Neighbouring kernels as passes of WebGPU's."""
    from .webgpu import Pass

    result: list[Step] = []
    for is_kernel, group in itertools.groupby(steps, lambda step: isinstance(step, Kernel)):
        neighbours = list(group)
        result += [Pass(device, cast(list[Kernel], neighbours))] if is_kernel else neighbours
    return result


def steps_are_timed() -> bool:
    return _C.watched() or os.environ.get("TORCH_TINY_DEBUG", "0") >= "2"


class Times:
    """How long each step of a program takes, by the host's clock: it waits for each."""

    def __init__(self, device: str):
        self.opened = Device[device]
        self.ends: list[int] = []
        self.step()

    def step(self) -> None:
        self.opened.synchronize()
        self.ends.append(time.perf_counter_ns())

    def microseconds(self) -> list[float]:
        return [(end - start) / 1e3 for start, end in itertools.pairwise(self.ends)]


def timed(device: str, steps: list[Step], operands: Operands) -> list[float]:
    """Runs the steps one by one, not in graphs; gives the microseconds of each, after the last is through."""
    times = cuda.Times() if target(device).driver == "CUDA" else Times(device)
    if target(device).driver == "WEBGPU":
        steps = [alone for step in steps for alone in in_passes(device, [step])]
    for step in steps:
        step.run(operands)
        times.step()
    return times.microseconds()


def assemble(schedule: Schedule) -> RemoteProgram:
    return RemoteProgram(plan_of(schedule), schedule.graph.device)


def load(data: bytes, device_index: int) -> RemoteProgram:
    """A program that was kept on disk."""
    device = device_name(device_index)
    return RemoteProgram(from_bytes(data, device), device)
