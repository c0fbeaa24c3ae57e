"""Operators that ATen's CPU kernels compute for a device with memory of its own: operands come down, results go up."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch
from tinygrad import Device
from tinygrad.helpers import to_mv

from torch_tinygrad.lower.registry import Meta
from torch_tinygrad.trace.forms import overload_of
from torch_tinygrad.values.steps import AtenStep

from .devices import copy_in

if TYPE_CHECKING:
    from .remote import Operands


def nbytes(meta: Meta | None) -> int:
    return 0 if meta is None else prod(meta.shape) * meta.dtype.itemsize


def bytes_of(tensor: torch.Tensor) -> memoryview:
    return to_mv(tensor.data_ptr(), tensor.nbytes)


class AtenCall:
    """Operands are the results that have elements, then the inputs that have any."""

    def __init__(self, step: AtenStep, operands: list[int]):
        self.step, self.operands = step, operands
        self.writes = operands[: step.count_results()]
        self.overload = overload_of(step.op)

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
        results = self.compute(tensors)
        for made, target, result in zip(step.results, targets, results, strict=True):
            if made is not None and target is not None:
                assert result is not None
                laid_out = torch.empty_strided(made.shape, made.stride, dtype=made.dtype, device="cpu").copy_(result)
                copy_in(operands.device, target, bytes_of(laid_out))

    def compute(self, tensors: dict[tuple[int, ...], torch.Tensor]) -> list[torch.Tensor | None]:
        def value(argument: Any, path: tuple[int, ...]) -> Any:
            if path in tensors:
                return tensors[path]
            if isinstance(argument, list):
                return [value(a, (*path, i)) for i, a in enumerate(argument)]
            return argument

        positional, keyword = [], {}
        for i, (schema, argument) in enumerate(zip(self.overload._schema.arguments, self.step.arguments, strict=False)):
            given = torch.device("cpu") if schema.name == "device" else value(argument, (i,))
            if schema.kwarg_only:
                keyword[schema.name] = given
            else:
                positional.append(given)
        with torch.no_grad():
            result = self.overload(*positional, **keyword)
        nested = result if isinstance(result, (tuple, list)) else [result]
        return [t for r in nested for t in (r if isinstance(r, (tuple, list)) else [r])]
