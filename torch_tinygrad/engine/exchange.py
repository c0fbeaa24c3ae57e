"""tinygrad's own tensors on the memory of ours, and ours on theirs."""

from __future__ import annotations

import weakref
from typing import Any

import numpy
import torch
from tinygrad import Tensor

from torch_tinygrad import _C, choice
from torch_tinygrad.lower.gather import take_flat
from torch_tinygrad.lower.registry import TO_TINY, TO_TORCH
from torch_tinygrad.trace import geometry
from torch_tinygrad.values.regions import apply

from .devices import device_name


class _Kept(numpy.ndarray):
    """Bytes of a tinygrad buffer, which they keep alive."""

    buffer: Any


def to_tinygrad(tensor: torch.Tensor) -> Tensor:
    dtype = TO_TINY[tensor.dtype]
    device = device_name(tensor.device.index)
    if not choice.is_host():
        return Tensor(tensor.detach().cpu().numpy(), device=device)
    count = tensor.untyped_storage().nbytes() // dtype.itemsize
    if tensor.numel() == 0:
        return Tensor.empty(*tensor.shape, dtype=dtype, device=device)
    view = _C.shared_view(tensor.detach().as_strided((count,), (1,), 0))
    flat = Tensor.from_blob(view.data_ptr(), (count,), dtype=dtype, device=device)
    weakref.finalize(flat.uop.buffer, lambda kept: None, view)
    size, stride, offset = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    plan = geometry.read_plan(count, size, stride, offset)
    if plan is not None:
        return apply(flat, plan)
    places = torch.arange(count, dtype=torch.int32).as_strided(size, stride, offset).contiguous()
    return take_flat(flat, Tensor(places.numpy(), device=device))


def from_tinygrad(tensor: Tensor, index: int) -> torch.Tensor:
    dtype = TO_TORCH[tensor.dtype]
    buffer = tensor._buffer()
    if 0 in tensor.shape:
        return torch.empty(tensor.shape, dtype=dtype, device=f"tiny:{index}")
    if not choice.is_host() or not buffer.device.startswith("CPU"):
        return torch.from_numpy(tensor.numpy()).to(f"tiny:{index}")
    kept = numpy.frombuffer(buffer.as_memoryview(force_zero_copy=True), numpy.uint8).view(_Kept)
    kept.buffer = buffer
    host = torch.frombuffer(kept, dtype=torch.uint8).view(dtype).reshape(tensor.shape)
    return _C.from_host(host, index)
