"""Puts an OpInfo's CPU samples onto a device: the same bytes, the same strides, and the device's name for the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.testing._internal.common_utils import noncontiguous_like

# Of these PyTorch takes tensors beside the input from the CPU, on every device.
TAKE_CPU = frozenset({"tensor_split"})


class Call(NamedTuple):
    """The arguments of one call of an operator."""

    input: Any
    args: tuple
    kwargs: dict
    device: str | None = None  # where results belong, if no tensor among the arguments says so

    def of(self, function: Callable[..., Any], **more: Any) -> Any:
        with torch.device(self.device) if self.device else nullcontext():
            return function(self.input, *self.args, **self.kwargs, **more)


def chosen(info, dtype: torch.dtype, count: int, requires_grad: bool) -> Iterator[tuple[int, Any]]:
    """`count` samples spread evenly over all that the operator has (all of them when `count` is 0), with their number.
    They depend on the operator and the dtype alone."""
    torch.manual_seed(0)
    made = info.sample_inputs("cpu", dtype, requires_grad=requires_grad)
    samples = list(islice(made, 1) if count == 1 else made)  # some operators have hundreds
    if not count or len(samples) <= count:
        return iter(enumerate(samples))
    numbers = sorted({round(i * (len(samples) - 1) / max(count - 1, 1)) for i in range(count)})
    return ((n, samples[n]) for n in numbers)


def copied(t: torch.Tensor, device: str) -> torch.Tensor:
    """A leaf with the same values, strides and offset."""
    if t.layout is not torch.strided or t.is_quantized:
        return t.detach().clone().to(device).requires_grad_(t.requires_grad)
    if t.is_conj():
        return copied(t.conj(), device).conj()
    if t.is_neg():
        return copied(torch._neg_view(t), device)._neg_view()
    storage, plain = t.untyped_storage(), t.detach()
    elements = storage.nbytes() // t.element_size()
    flat = torch.empty(0, dtype=t.dtype).set_(storage, 0, (elements,), (1,))
    on_device = flat.clone().to(device).as_strided(plain.size(), plain.stride(), plain.storage_offset())
    return on_device.detach().requires_grad_(t.requires_grad)


def placed(sample: Any, device: str, noncontiguous: bool = False, operator: str = "") -> Call:
    """A sample's arguments on a device, as the operator takes them. A tensor that occurs twice stays one tensor."""
    seen: dict[int, torch.Tensor] = {}

    def move(value: Any, key: str = "") -> Any:
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                return value
            if id(value) not in seen:
                seen[id(value)] = copied(noncontiguous_like(value) if noncontiguous else value, device)
            return seen[id(value)]
        if isinstance(value, torch.device) and value.type == "cpu":
            return torch.device(device)
        if isinstance(value, str) and (key == "device" or value == "cpu"):
            return device
        if isinstance(value, torch.Generator):
            return torch.Generator(device).manual_seed(value.initial_seed())
        if isinstance(value, dict):
            return {k: move(v, k) for k, v in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(move, value))
        if isinstance(value, (list, tuple)):
            return type(value)(map(move, value))
        return value

    given = move(sample.input)
    if operator in TAKE_CPU:
        return Call(given, tuple(sample.args), dict(sample.kwargs))
    call = Call(given, move(tuple(sample.args)), move(dict(sample.kwargs)))
    return call if seen else call._replace(device=device)
