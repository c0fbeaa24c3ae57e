"""What programs of devices with memory of their own are made of: a table of operands that each run fills, and steps
that read it: kernels, copies of constants, arrays of lifted numbers. Steps of ATen's: `aten`; several at once:
`graphs`."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy
import torch
from tinygrad import dtypes
from tinygrad.device import Buffer
from tinygrad.engine.realize import get_runtime
from tinygrad.uop.ops import ProgramInfo, UOp

from torch_tinygrad.target import target

from . import cuda
from .devices import allocate, copy_in, write


class Step(Protocol):
    @property
    def operands(self) -> list[int]: ...
    @property
    def writes(self) -> list[int]: ...  # those of them that change

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

    def owner(self, i: int) -> torch.Tensor:
        """ATen's memory that operand i lies in, where the buffers are ATen's."""
        return self.bases[self.table[i][0]].owner

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
        self.launch = cuda.Launch(self.runtime, self.operands, self.sizes) if target(device).driver == "CUDA" else None
        self.pipeline: Any = None
        if target(device).driver == "WEBGPU":
            from .webgpu import Pipeline

            self.pipeline = Pipeline(device, self.runtime, len(self.operands), self.sizes)

    def run(self, operands: Operands) -> None:
        if self.launch is not None:
            return self.launch(operands)
        opaque = operands.opaque
        self.runtime(*[opaque[i] for i in self.operands], **self.sizes)
        return None

    def as_call(self, device: str, table: list[tuple[int, int, int]]) -> UOp:
        """The launch as tinygrad's graphs take it: operands are parameters, and none but those the kernel uses."""
        program, position = self.program, {number: i for i, number in enumerate(self.info.globals)}
        if list(self.info.globals) != list(range(len(position))):
            moved = {key: tuple(position[i] for i in getattr(self.info, key)) for key in ("globals", "outs", "ins")}
            program = program.replace(arg=replace(self.info, **moved))
        return program.call(*[UOp.param(i, dtypes.uint8, (table[i][2],), device) for i in self.operands])


class Copy:
    """A constant that tinygrad keeps on the host."""

    def __init__(self, destination: int, source: bytes):
        self.destination, self.source = destination, memoryview(bytearray(source))
        self.operands = self.writes = [destination]

    def run(self, operands: Operands) -> None:
        copy_in(operands.device, operands.opaque[self.destination], self.source)


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
