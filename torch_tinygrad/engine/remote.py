"""Programs for devices with memory of their own: kernels launched through tinygrad, in its graphs where it has them.

A program's operands are resolved once into a table of (base buffer, offset). A run fills the table with this flush's
buffers and goes through the steps.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy
from tinygrad import Device, dtypes
from tinygrad.device import Buffer
from tinygrad.engine.jit import graph_class
from tinygrad.engine.realize import estimate_uop, get_runtime
from tinygrad.uop.ops import Ops, ProgramInfo, UOp

from . import explain
from .aten import AtenCall
from .devices import ARENAS, activate, allocate, has_views, write
from .graphs import Batch
from .layout import ARENA, CONSTANT, FLOATS, INPUT, INTS, OUTPUT, Operand, lay_out
from .marks import LAST_WRITES, Mark, new_mark
from .schedule import Schedule

# Kernels in a program's first graph; each further one holds twice as many. The device starts on the first while the
# host prepares the next.
FIRST_BATCH = 32


# Bytes of a result that somebody may well be waiting for, such as a loss: a graph ends where it is ready.
_AWAITED = 8


class Step(Protocol):
    writes: list[int]  # operands

    def run(self, operands: Operands) -> None: ...


class Operands:
    """The buffers of a run: `opaque[i]` is operand i as the device's driver knows it."""

    def __init__(self, device: str, table: list[tuple[int, int, int]]):
        self.device = device
        self.table = table  # (number of the base buffer, offset, bytes)
        self.bases: list[Buffer | None] = [None] * (1 + max((base for base, _, _ in table), default=-1))
        self.opaque: list[Any] = [None] * len(table)
        self.block: weakref.ref[Buffer] | None = None
        self.users: list[list[int]] = [[] for _ in self.bases]
        for i, (base, _, _) in enumerate(table):
            self.users[base].append(i)

    def set(self, number: int, buffer: Buffer) -> None:
        if number >= len(self.bases) or self.bases[number] is buffer:
            return
        self.bases[number] = buffer
        for i in self.users[number]:
            _, offset, nbytes = self.table[i]
            self.opaque[i] = buffer.allocator._offset(buffer._buf, nbytes, offset) if offset else buffer._buf

    def set_block(self, number: int, buffer: Buffer) -> None:
        """As `set`, for a buffer that is the same in most runs and that a program must not keep alive."""
        if self.block is not None and self.block() is buffer:
            self.bases[number] = buffer
        else:
            self.set(number, buffer)
            self.block = weakref.ref(buffer)

    def release(self, numbers: range) -> None:
        """Lets go of buffers, so that storages alone decide how long they live."""
        for number in numbers[: max(0, len(self.bases) - numbers.start)]:
            self.bases[number] = None

    def view(self, i: int) -> Buffer:
        base, offset, nbytes = self.table[i]
        buffer = self.bases[base]
        assert buffer is not None
        return buffer.view(nbytes, dtypes.uint8, offset).ensure_allocated() if offset else buffer


class Kernel:
    """One launch."""

    def __init__(self, device: str, program: UOp, operands: list[int]):
        info: ProgramInfo = program.arg
        self.program, self.info = program, info
        self.operands = [operands[i] for i in info.globals]
        self.writes = [operands[i] for i in info.outs]
        self.runtime = get_runtime(device, program)
        self.sizes: dict[str, Any] = {"vals": info.vals({})}
        self.sizes["global_size"], self.sizes["local_size"] = info.launch_dims({})

    def run(self, operands: Operands) -> None:
        opaque = operands.opaque
        self.runtime(*[opaque[i] for i in self.operands], **self.sizes)

    def as_call(self, device: str, table: list[tuple[int, int, int]]) -> UOp:
        """The launch as tinygrad's graphs take it: operands are parameters, and none but those the kernel uses."""
        program, place = self.program, {slot: i for i, slot in enumerate(self.info.globals)}
        if list(self.info.globals) != list(range(len(place))):
            moved = {key: tuple(place[i] for i in getattr(self.info, key)) for key in ("globals", "outs", "ins")}
            program = program.replace(arg=replace(self.info, **moved))
        return program.call(*[UOp.param(i, dtypes.uint8, (table[i][2],), device) for i in self.operands])


class Copy:
    """A constant that tinygrad keeps on the host."""

    def __init__(self, destination: int, source: Buffer):
        self.destination, self.source = destination, source
        self.writes = [destination]

    def run(self, operands: Operands) -> None:
        Device[operands.device].allocator._copyin(operands.opaque[self.destination], self.source.as_memoryview())


class Numbers:
    """An array of lifted numbers, written when they change."""

    def __init__(self, device: str, count: int, dtype: numpy.dtype):
        self.buffer = allocate(device, count * dtype.itemsize)
        self.dtype, self.written = dtype, b""

    def set(self, numbers: Sequence[float]) -> None:
        values = numpy.array(numbers, self.dtype)
        data = values.tobytes()
        if data != self.written:
            write(self.buffer, values.data.cast("B"))
            self.written = data


class RemoteProgram:
    """What the runtime asks of a program: storages in and out by number, positions of lifted numbers, counts, `run`."""

    def __init__(self, schedule: Schedule):
        graph = schedule.graph
        device = self.device = graph.device
        layout = lay_out(schedule, has_views(device))
        self.inputs, self.outputs, self.output_bytes = layout.inputs, layout.outputs, layout.output_bytes
        self.temporaries = layout.temporaries
        self.floats = len(graph.floats)
        self.lifted = [*graph.floats, *graph.ints]
        self.kernels, self.bytes_moved = 0, 0
        self.fallbacks: dict[str, int] = {}
        self.description: list[str] = []

        # Base buffers are numbered: inputs, outputs, temporaries, numbers, constants.
        first = {INPUT: 0, OUTPUT: len(self.inputs)}
        first[ARENA] = first[OUTPUT] + len(self.outputs)
        first[FLOATS] = first[ARENA] + len(self.temporaries)
        first[INTS] = first[FLOATS] + 1
        first[CONSTANT] = first[INTS] + 1
        self.first = first
        table: dict[tuple[int, int, int], int] = {}

        def number(operand: Operand) -> int:
            (kind, index, offset), nbytes = operand
            return table.setdefault((first[kind] + index, offset, nbytes), len(table))

        steps: list[Step] = []
        operators = explain.operators(schedule)
        for (call, arguments), names in zip(layout.calls, operators, strict=True):
            kind, operands = call.src[0], [number(a) for a in arguments]
            if kind.op is Ops.PROGRAM:
                kernel = Kernel(device, kind, operands)
                moved = int(estimate_uop(call).mem)
                self.description.append(f"kernel {kernel.info.function_name}, {moved} bytes: {names}")
                steps.append(kernel)
            elif kind.op is Ops.CUSTOM_FUNCTION:
                step = graph.step(call)
                aten = AtenCall(step, operands)
                moved = aten.bytes_moved
                if step.is_fallback:
                    self.fallbacks[step.op] = self.fallbacks.get(step.op, 0) + 1
                self.description.append(f"aten {step.op}")
                steps.append(aten)
            elif kind.op is Ops.COPY and arguments[1].place.kind == CONSTANT:
                source = layout.constants[arguments[1].place.number]
                moved = source.nbytes
                self.description.append(f"copy of a constant: {moved} bytes")
                steps.append(Copy(operands[0], source))
            else:
                raise RuntimeError(f"a step that {device} cannot run: {kind.op}")
            self.kernels += 1
            self.bytes_moved += moved
        self.operands = Operands(device, list(table))
        self.steps = self._batched(steps)
        self.marks = self._marks()

        for i, constant in enumerate(layout.constants):
            self.operands.set(first[CONSTANT] + i, constant)
        self.numbers: list[tuple[slice, Numbers]] = []
        if graph.floats:
            single = graph.float_input.dtype == dtypes.float32
            floats = Numbers(device, self.floats, numpy.dtype(numpy.float32 if single else numpy.float64))
            self.numbers.append((slice(0, self.floats), floats))
            self.operands.set(first[FLOATS], floats.buffer)
        if graph.ints:
            ints = Numbers(device, len(graph.ints), numpy.dtype(numpy.int64))
            self.numbers.append((slice(self.floats, None), ints))
            self.operands.set(first[INTS], ints.buffer)

    def _last_writers(self, steps: list[Step]) -> dict[int, int]:
        """For each input and output that steps write, by the number of its buffer, the last step that does."""
        table, end = self.operands.table, self.first[ARENA]
        return {table[i][0]: k for k, step in enumerate(steps) for i in step.writes if table[i][0] < end}

    def _marks(self) -> dict[int, tuple[Mark, list[int]]]:
        """For steps after which somebody may read: the mark to set, and the buffers that are final then."""
        found: dict[int, tuple[Mark, list[int]]] = {}
        for number, k in self._last_writers(self.steps).items():
            if k not in found:
                if (mark := new_mark(self.device)) is None:
                    break
                found[k] = mark, []
            found[k][1].append(number)
        return found

    def _batched(self, steps: list[Step]) -> list[Step]:
        """Neighbouring kernels together, where the device has graphs."""
        if Device[self.device].graph is None:
            return steps
        runner = graph_class(Device[self.device])
        result: list[Step] = []
        batch: list[Kernel] = []
        calls: list[UOp] = []
        size = FIRST_BATCH
        awaited = {
            k
            for number, k in self._last_writers(steps).items()
            if number >= self.first[OUTPUT] and self.output_bytes[number - self.first[OUTPUT]] <= _AWAITED
        }

        def close() -> None:
            if len(batch) > 1:
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
                    elif k in awaited:
                        close()
                    continue
            close()
            result.append(step)
        close()
        return result

    def run(self, inputs: list[Buffer], numbers: list[float]) -> list[Buffer]:
        activate(self.device)
        operands, first = self.operands, self.first
        outputs = [allocate(self.device, nbytes) for nbytes in self.output_bytes]
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
        for k, step in enumerate(self.steps):
            step.run(operands)
            if k in self.marks:
                mark, written = self.marks[k]
                mark.set()
                for number in written:
                    LAST_WRITES[operands.bases[number]] = mark
        operands.release(range(0, first[FLOATS]))
        return outputs


def assemble(schedule: Schedule) -> RemoteProgram:
    return RemoteProgram(schedule)
