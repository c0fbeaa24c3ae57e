"""Steps of ATen's in programs of a device with memory of its own. Where PyTorch has kernels for that device they run on
the program's buffers; else the CPU's run: operands come down, results go up."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch
from tinygrad import Device
from tinygrad.helpers import to_mv

from torch_tinygrad import _C
from torch_tinygrad.lower.registry import Meta
from torch_tinygrad.target import target
from torch_tinygrad.trace.forms import overload_of
from torch_tinygrad.values.steps import AtenStep, Operand

from .devices import copy_in, library_device

if TYPE_CHECKING:
    from .operands import Operands


def nbytes(meta: Meta | None) -> int:
    return 0 if meta is None else prod(meta.shape) * meta.dtype.itemsize


def bytes_of(tensor: torch.Tensor) -> memoryview:
    return to_mv(tensor.data_ptr(), tensor.nbytes)


# Operators whose `out=` overload does the work in place rather than copying a result.
WRITES_DIRECTLY = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_softmax", "aten::_log_softmax"}
# On a GPU, whose kernels have no others behind them.
SELECTS_DIRECTLY = {
    "aten::sort", "aten::sort.stable", "aten::topk", "aten::kthvalue", "aten::cumsum", "aten::cumprod", "aten::argmax",
    "aten::argmin", "aten::max.dim", "aten::min.dim", "aten::sum.dim_IntList",
}  # fmt: skip


def out_form(op: str, results: int):
    """The overload that writes into given results, where ATen has one with the same arguments."""
    overload = overload_of(op)
    arguments = [(a.name, str(a.type)) for a in overload._schema.arguments]
    packet = overload._overloadpacket
    for candidate in packet.overloads():
        schema = getattr(packet, candidate)._schema
        outs = [a for a in schema.arguments if a.is_out]
        if len(outs) == results and [(a.name, str(a.type)) for a in schema.arguments if not a.is_out] == arguments:
            if all("[]" not in str(a.type) for a in outs):
                return getattr(packet, candidate)
    return None


class Call:
    """An operator with all its arguments but the tensors. Operands are the results that have elements, then the inputs
    that have any."""

    device = torch.device("cpu")  # of ATen's kernels

    def __init__(self, step: AtenStep, operands: list[int]):
        self.step, self.operands = step, operands
        self.writes = operands[: step.count_results()]
        self.overload = overload_of(step.op)

    def arguments(self, tensors: dict[tuple[int, ...], torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        def value(argument: Any, path: tuple[int, ...]) -> Any:
            if path in tensors:
                return tensors[path]
            if isinstance(argument, list):
                return [value(a, (*path, i)) for i, a in enumerate(argument)]
            return argument

        positional, keyword = [], {}
        for i, (schema, argument) in enumerate(zip(self.overload._schema.arguments, self.step.arguments, strict=False)):
            given = self.device if schema.name == "device" else value(argument, (i,))
            if schema.name == "generator" and given is not None:
                given = torch.Generator(self.device).manual_seed(_C.seed_for_cpu(*given.tolist()))
            if schema.kwarg_only:
                keyword[schema.name] = given
            else:
                positional.append(given)
        return positional, keyword

    def compute(self, positional: list[Any], keyword: dict[str, Any]) -> list[torch.Tensor | None]:
        result = self.overload(*positional, **keyword)
        nested = result if isinstance(result, (tuple, list)) else [result]
        return [t for r in nested for t in (r if isinstance(r, (tuple, list)) else [r])]


class CpuCall(Call):
    """By the CPU's kernels, on copies."""

    def run(self, operands: Operands) -> None:
        step, allocator = self.step, Device[operands.device].allocator
        remaining = iter(self.operands)
        targets = [operands.opaque[next(remaining)] if nbytes(m) else None for m in step.results]
        tensors = {}
        for path, meta in zip(step.paths, step.inputs, strict=True):
            if not nbytes(meta):
                tensors[path] = torch.empty(meta.shape, dtype=meta.dtype, device="cpu")
                continue
            last = meta.offset + sum((size - 1) * stride for size, stride in zip(meta.shape, meta.stride, strict=True))
            flat = torch.empty(last + 1, dtype=meta.dtype, device="cpu")
            allocator._copyout(bytes_of(flat), operands.opaque[next(remaining)])
            tensors[path] = flat.as_strided(meta.shape, meta.stride, meta.offset)
        results = self.compute(*self.arguments(tensors))
        for made, written, result in zip(step.results, targets, results, strict=True):
            if made is not None and written is not None:
                assert result is not None
                laid_out = torch.empty_strided(made.shape, made.stride, dtype=made.dtype, device="cpu").copy_(result)
                copy_in(operands.device, written, bytes_of(laid_out))


class LibraryCall(Call):
    """By PyTorch's kernels for the device, on the program's own buffers."""

    def __init__(self, step: AtenStep, operands: list[int], device: torch.device):
        super().__init__(step, operands)
        self.device = device
        writes = step.op in WRITES_DIRECTLY or step.op in SELECTS_DIRECTLY
        self.out = out_form(step.op, len(step.results)) if writes else None
        self.on_cpu: CpuCall | None = None  # where the kernel refused these types

    def run(self, operands: Operands) -> None:
        if self.on_cpu is None:
            try:
                return self._run(operands)
            except NotImplementedError:
                self.on_cpu = CpuCall(self.step, self.operands)
        _C.count_fallback(self.step.op)
        self.on_cpu.run(operands)

    def _run(self, operands: Operands) -> None:
        if self.device.type == "cpu":  # nothing orders its kernels after tinygrad's
            Device[operands.device].synchronize()
        targets, positional, keyword = self._views(operands)
        if self.out is not None:
            self.out(*positional, **keyword)
            return
        for written, result in zip(targets, self.compute(positional, keyword), strict=True):
            if written is not None and result is not None and result.numel():  # else a workspace of the CPU's alone
                written.copy_(result)

    def _views(self, operands: Operands) -> tuple[list[torch.Tensor | None], list[Any], dict[str, Any]]:
        """Results and arguments over this run's memory. They are not kept, or it would live until the next run."""
        remaining = iter(self.operands)

        def tensor(meta: Operand) -> torch.Tensor:
            if not nbytes(meta):
                return torch.empty(meta.shape, dtype=meta.dtype, device=self.device)
            i = next(remaining)
            first = operands.table[i][1] // meta.dtype.itemsize + meta.offset
            empty = torch.empty(0, dtype=meta.dtype, device=self.device)
            return empty.set_(operands.owner(i).untyped_storage(), first, meta.shape, meta.stride)

        targets = [tensor(m) if m is not None and nbytes(m) else None for m in self.step.results]
        positional, keyword = self.arguments(
            {path: tensor(m) for path, m in zip(self.step.paths, self.step.inputs, strict=True)}
        )
        if self.out is not None:
            names = (a.name for a in self.out._schema.arguments if a.is_out)
            keyword |= dict(zip(names, targets, strict=True))
        return targets, positional, keyword


def has_library_kernel(device: str, step: AtenStep) -> bool:
    """Whether PyTorch has a kernel for the operator that runs on the device's memory."""
    library = target(device).library
    name = overload_of(step.op).name()
    return library != "" and torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, library.upper())


def aten_call(device: str, step: AtenStep, operands: list[int]) -> LibraryCall | CpuCall:
    if has_library_kernel(device, step):
        return LibraryCall(step, operands, library_device(device))
    return CpuCall(step, operands)
