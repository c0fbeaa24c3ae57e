"""Programs for devices that share the host's memory: kernels by address, run by the C++ runner without Python."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import torch
from tinygrad.engine.realize import estimate_uop, get_call_arg_uops
from tinygrad.uop.ops import Ops, UOp

from torch_tinygrad import _C
from torch_tinygrad.trace.decisions import decide, is_for_one_size
from torch_tinygrad.trace.forms import overload_of
from torch_tinygrad.trace.geometry import covers
from torch_tinygrad.values.steps import AtenStep, Operand
from torch_tinygrad.values.storages import Flat

from . import explain
from .aten import WRITES_DIRECTLY, nbytes, out_form
from .images import image_of
from .independence import Independence
from .layout import INPUT, NOWHERE, SIZES, Slot, lay_out
from .order import bytes_of
from .schedule import Schedule


class Code(NamedTuple):
    """A kernel's machine code. One that `takes_sizes` has the table of sizes as its last pointer; its threads share
    `elements` then."""

    image: bytes
    imports: list[tuple[str, int]]
    takes_sizes: bool = False
    elements: int = 0


def code_of(call: UOp) -> Code:
    return Code(*image_of(call.src[0].to_elf().lib))


def assemble(schedule: Schedule, code_of: Callable[[UOp], Code] = code_of) -> _C.HostProgram:
    """Lays everything out and puts the kernels' code where it belongs."""
    graph = schedule.graph
    program = _C.HostProgram()
    made = made_by_steps(schedule)
    layout = lay_out(schedule, made=made, free=free_storages(graph.flats))
    program.made, program.adopted, program.arena = len(made), layout.adopted, sum(layout.temporaries)
    program.temporaries, program.taken = layout.blocks, layout.taken

    for constant in layout.constants:
        program.add_constant(bytes(constant.as_memoryview()))
    description = []
    operators = explain.operators(schedule)
    fallbacks: dict[str, int] = {}
    independence = Independence(layout.taken)
    moved: list[int] = []
    for (call, arguments), names, releases in zip(layout.calls, operators, layout.releases, strict=True):
        kind = call.src[0]
        slots = [a.slot for a in arguments]
        if kind.op is Ops.PROGRAM:
            info = kind.arg
            used_slots = [slots[i] for i in info.globals]
            threads = int(info.global_size[0]) if info.runtimevars else 1
            beside = independence.add(info, arguments)
            code = code_of(call)
            if code.takes_sizes:
                used_slots.append(Slot(SIZES, 0, 0))
            core = len(used_slots) + info.runtimevars["core_id"] if info.runtimevars else -1
            values = [0] * len(info.vars)
            program.add_kernel(code.image, code.imports, used_slots, values, threads, core, beside, code.elements)
            estimate = estimate_uop(call)
            moved.append(int(estimate.mem))
            program.kernels += 1
            description.append(explain.kernel_line(info.function_name, estimate, names))
        elif kind.op is Ops.CUSTOM_FUNCTION:
            step = graph.step(call)
            nbytes_moved = add_aten(program, step, slots, layout.written)
            moved.append(nbytes_moved)
            independence.restart()
            program.kernels += 1
            if step.is_fallback:
                fallbacks[step.op] = fallbacks.get(step.op, 0) + 1
            description.append(explain.library_line(step, nbytes_moved))
        else:
            raise RuntimeError(f"a step that the host cannot run: {kind.op}")
        program.release_after(releases)
    program.inputs, program.written = layout.inputs, layout.written
    program.outputs = list(zip(layout.outputs, layout.output_bytes, strict=True))
    program.floats, program.ints = graph.floats, graph.ints
    program.lifted = sorted({*graph.floats, *graph.ints})
    program.storage_sizes = [size_it_is_for(flat) for flat in graph.flats]
    program.moved, program.bytes_moved = moved, sum(moved)
    program.fallbacks, program.description = fallbacks, description
    return program


def size_it_is_for(flat: Flat) -> int:
    """Bytes that a storage must have; -1 where its size is of no matter, or in the trace's key anyway."""
    matters = flat.storage.has_value and not (flat.storage.any_size and flat.is_taken_in_parts)
    return flat.storage.nbytes if matters else -1


def free_storages(flats: list[Flat]) -> set[int]:
    """The storages that nobody sees after the trace."""
    return {number for number, flat in enumerate(flats) if not flat.storage.live}


def fills(meta: Operand, buffer: UOp) -> bool:
    """Whether a result takes up all of its buffer, without gaps."""
    return covers(bytes_of(buffer) // meta.dtype.itemsize, meta.shape, meta.stride, 0)


def writes_directly(step: AtenStep):
    """The overload that the step can be run with so that it writes into given memory without copying."""
    if step.op not in WRITES_DIRECTLY:
        return None
    return by_onednn(step) or out_form(step.op, len(step.results))


# Where oneDNN is faster on processors that MKL is not at its best on, though its calls take 10 us longer: from so many
# multiplications on, or elements of the second factor (a row by 384 x 1536: 112 us instead of 234).
MANY, LARGE = 1 << 22, 1 << 17


def by_onednn(step: AtenStep):
    """The product by oneDNN, where that is better: as a whole (csrc/programs/products.cpp), or by its blocks
    (small_products.cpp). Blocks have code for each size, which a program for many sizes would make while it runs."""
    name = step.op.removeprefix("aten::")
    if name not in ("mm", "bmm") or not _C.onednn_multiplies_faster():
        return None
    a, b = step.inputs
    if a.dtype is not torch.float32:
        return None
    if decide("oneDNN", prod(a.shape) * b.shape[-1] >= MANY or prod(b.shape) >= LARGE):
        return getattr(torch.ops.tiny, name).out
    is_small = name == "mm" and is_for_one_size() and _C.multiplies_small_by_blocks()
    return torch.ops.tiny.small_mm.out if is_small else None


def made_by_steps(schedule: Schedule) -> list[UOp]:
    """The buffers that steps of ATen's allocate themselves: results that fill them as they lie."""
    made = []
    for call in schedule.calls:
        if call.uop.src[0].op is Ops.CUSTOM_FUNCTION:
            step = schedule.graph.step(call.uop)
            metas = [m for m in step.results if m is not None and nbytes(m)]
            buffers = get_call_arg_uops(call.uop)[: len(metas)]
            if writes_directly(step) is None:
                alone = {b for b in buffers if b.op is Ops.BUFFER and b not in schedule.graph.space.inside}
                made += [b for b, m in zip(buffers, metas, strict=True) if b in alone and fills(m, b)]
    return made


def has_packable_weights(step: AtenStep, slots: list[Slot], written: list[int]) -> bool:
    """Whether this is a convolution of oneDNN's whose weights are an input that the program only reads. They are then
    kept in oneDNN's own layout from the second run on (ResNet-18, one thread: 4 to 7 % less time)."""
    if step.op != "aten::convolution" or step.arguments[6] or len(step.inputs[1].shape) != 4:
        return False
    if slots[1].kind != INPUT or slots[1].number in written:
        return False
    tensors = [torch.empty_strided(m.shape, m.stride, dtype=m.dtype) for m in step.inputs]
    bias = tensors[2] if len(tensors) > 2 else None
    backend = torch._C._select_conv_backend(tensors[0], tensors[1], bias, *step.arguments[3:])
    return backend.name == "Mkldnn"


def add_aten(program: _C.HostProgram, step: AtenStep, slots: list, written: list[int]) -> int:
    """Adds a step of ATen's; returns the bytes it moves."""

    results: list[tuple | None] = []
    next_slot = 0
    for meta in step.results:
        if meta is None or nbytes(meta) == 0:
            results.append(None)
            continue
        results.append((slots[next_slot], meta.dtype, list(meta.shape), list(meta.stride)))
        next_slot += 1
    tensors = []
    for path, meta in zip(step.paths, step.inputs, strict=True):
        where = Slot(NOWHERE, 0, 0)
        if nbytes(meta):
            where = slots[next_slot]
            where = where._replace(offset=where.offset + meta.offset * meta.dtype.itemsize)
            next_slot += 1
        tensors.append((list(path), (where, meta.dtype, list(meta.shape), list(meta.stride))))
    overload = writes_directly(step)
    schema = (overload or overload_of(step.op))._schema
    placeholder = torch.empty(0)
    arguments = [_with_placeholders(a, (i,), set(step.paths), placeholder) for i, a in enumerate(step.arguments)]
    arguments = [
        torch.device("cpu") if s.name == "device" else a for s, a in zip(schema.arguments, arguments, strict=False)
    ]
    packs = has_packable_weights(step, [where for _, (where, *_) in tensors], written)
    program.add_aten(schema.name, schema.overload_name, arguments, tensors, results, packs)
    return sum(nbytes(m) for m in (*step.inputs, *step.results) if m is not None)


def _with_placeholders(argument, path: tuple[int, ...], paths: set, placeholder: torch.Tensor):
    if path in paths:
        return placeholder
    if isinstance(argument, list):
        return [_with_placeholders(a, (*path, i), paths, placeholder) for i, a in enumerate(argument)]
    return argument
