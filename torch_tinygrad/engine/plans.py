"""Programs for devices with memory of their own, as plain data: what is kept on disk, and what `remote` runs.

The bytes are JSON, then the binary parts it counts: machine code and constants. Reading them runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields
from typing import Any

import torch
from tinygrad.dtype import AddrSpace, DType, dtypes
from tinygrad.helpers import Target
from tinygrad.uop.ops import KernelInfo, Ops, ProgramInfo, UOp

from torch_tinygrad.values.steps import AtenStep, Operand


@dataclass(frozen=True)
class Launch:
    """A kernel: `operands` for all of its parameters, whether the code uses them or not."""

    program: UOp
    operands: list[int]


@dataclass(frozen=True)
class Constant:
    """A constant that is copied into a buffer."""

    destination: int
    number: int


@dataclass(frozen=True)
class Aten:
    step: AtenStep
    operands: list[int]


@dataclass
class Plan:
    inputs: list[int]  # storages read, or written in place
    outputs: list[int]  # storages that get a new buffer
    output_bytes: list[int]
    temporaries: list[int]  # bytes of each block that temporaries lie in
    floats: list[int]  # positions of lifted numbers
    ints: list[int]
    float_bytes: int
    constants: list[bytes] = field(default_factory=list)
    table: list[tuple[int, int, int]] = field(default_factory=list)  # operands: base buffer, offset, bytes
    steps: list[Launch | Constant | Aten] = field(default_factory=list)
    kernels: int = 0
    bytes_moved: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    description: list[str] = field(default_factory=list)


class Unwritable(Exception):
    """Something that the bytes have no form for."""


def to_bytes(plan: Plan) -> bytes:
    parts: list[bytes] = []

    def binary(part: bytes) -> int:
        parts.append(part)
        return len(parts) - 1

    plain = {f.name: getattr(plan, f.name) for f in fields(plan)}
    plain["constants"] = [binary(c) for c in plan.constants]
    plain["steps"] = [_WRITERS[type(step)](step, binary) for step in plan.steps]
    text = json.dumps({"plan": plain, "parts": [len(p) for p in parts]}, default=_refuse).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def _refuse(value: Any) -> Any:
    raise Unwritable(f"a {type(value).__name__}")


def from_bytes(data: bytes, device: str) -> Plan:
    start = 8 + int.from_bytes(data[:8], "little")
    read = json.loads(data[8:start])
    parts = []
    for size in read["parts"]:
        parts.append(data[start : start + size])
        start += size
    plain = read["plan"]
    plain["constants"] = [parts[i] for i in plain["constants"]]
    plain["table"] = [tuple(row) for row in plain["table"]]
    plain["steps"] = [_READERS[kind](rest, parts, device) for kind, *rest in plain["steps"]]
    return Plan(**plain)


# ---- kernels -------------------------------------------------------------------------------------------------------


def _write_launch(launch: Launch, binary: Callable[[bytes], int]) -> list:
    _, linear, _, code = launch.program.src
    info: ProgramInfo = launch.program.arg
    parameters = [_write_parameter(u) for u in linear.src if u.op is Ops.PARAM]
    rest = [info.name, info.global_size, info.local_size, info.globals, info.outs, info.ins, astuple(info.target)]
    return ["launch", launch.operands, binary(code.arg), parameters, rest]


def _read_launch(rest: list, parts: list[bytes], device: str) -> Launch:
    operands, code, written, (name, *tuples, target) = rest
    parameters = [_read_parameter(p, device) for p in written]
    global_size, local_size, used, outs, ins = (None if t is None else tuple(t) for t in tuples)
    variables = tuple(sorted((p for p in parameters if p.addrspace is AddrSpace.ALU), key=lambda p: p.arg.slot))
    info = ProgramInfo(name, global_size, local_size, variables, used, outs, ins, Target(*target))
    sources = (
        UOp(Ops.SINK, arg=KernelInfo(name=name)),
        UOp(Ops.LINEAR, src=tuple(parameters)),
        UOp(Ops.SOURCE, arg=""),
        UOp(Ops.BINARY, arg=parts[code]),
    )
    return Launch(UOp(Ops.PROGRAM, src=sources, arg=info), operands)


def _write_parameter(parameter: UOp) -> list:
    arg, dtype = parameter.arg, parameter.arg.dtype
    if type(dtype) is not DType or _DTYPES.get(dtype.name) != dtype:
        raise Unwritable(f"a parameter of type {dtype}")
    return [arg.slot, dtype.name, parameter._shape, arg.vmin_vmax, arg.multiple_of, arg.name, arg.addrspace.name]


def _read_parameter(written: list, device: str) -> UOp:
    slot, dtype, shape, bounds, multiple_of, name, addrspace = written
    space = AddrSpace[addrspace]
    return UOp.param(
        slot,
        _DTYPES[dtype],
        None if shape is None else tuple(shape),
        None if space is AddrSpace.ALU else device,
        None if bounds is None else tuple(bounds),
        multiple_of,
        name,
        space,
    )


_DTYPES = {dtype.name: dtype for dtype in dtypes.all}


# ---- constants, and steps of ATen's --------------------------------------------------------------------------------


def _write_constant(constant: Constant, _: Callable[[bytes], int]) -> list:
    return ["constant", *astuple(constant)]


def _read_constant(rest: list, _: list[bytes], __: str) -> Constant:
    return Constant(*rest)


def _write_aten(aten: Aten, _: Callable[[bytes], int]) -> list:
    step = aten.step
    inputs = [_write_operand(m) for m in step.inputs]
    results = [None if m is None else _write_operand(m) for m in step.results]
    return ["aten", aten.operands, step.op, _write_value(step.arguments), step.paths, inputs, results, step.is_fallback]


def _read_aten(rest: list, _: list[bytes], __: str) -> Aten:
    operands, op, arguments, paths, inputs, results, is_fallback = rest
    step = AtenStep(
        op,
        tuple(_read_value(arguments)),
        tuple(map(tuple, paths)),
        tuple(_read_operand(*m) for m in inputs),
        tuple(None if m is None else _read_operand(*m) for m in results),
        is_fallback,
    )
    return Aten(step, operands)


def _write_operand(operand: Operand) -> list:
    return [operand.shape, str(operand.dtype).removeprefix("torch."), operand.stride, operand.offset]


def _read_operand(shape: list[int], dtype: str, stride: list[int], offset: int) -> Operand:
    return Operand(tuple(shape), getattr(torch, dtype), tuple(stride), offset)


def _write_value(value: Any) -> Any:
    """An argument: what JSON has no form for is a dictionary."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return [_write_value(v) for v in value]
    return {"complex": [value.real, value.imag]} if type(value) is complex else _refuse(value)


def _read_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_read_value(v) for v in value]
    return complex(*value["complex"]) if isinstance(value, dict) else value


_WRITERS: dict[type, Callable] = {Launch: _write_launch, Constant: _write_constant, Aten: _write_aten}
_READERS = {"launch": _read_launch, "constant": _read_constant, "aten": _read_aten}
