"""Memory shared with others: DLPack, other processes, and tinygrad's own tensors. There is no copy where the device
computes in the host's memory; what either side writes, the other sees, after a flush of ours."""

from __future__ import annotations

import functools
from typing import Any

import torch

from . import _C
from .choice import is_host

# ---- DLPack ----


def _register_dlpack() -> None:
    """On the host our tensors are exported as what they are, the CPU's memory."""
    from torch.utils.dlpack import DLDeviceType

    export, device_of, take = torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__, torch.from_dlpack

    @functools.wraps(export)
    def __dlpack__(self: torch.Tensor, **options: Any) -> Any:
        if self.device.type != "tiny":
            return export(self, **options)
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if self.is_conj():
            raise BufferError("Can't export tensors with the conjugate bit set")
        view = _C.shared_view(self) if is_host() else self.cpu()
        return export(view, **{**options, "stream": None})

    @functools.wraps(device_of)
    def __dlpack_device__(self: torch.Tensor) -> Any:
        return (DLDeviceType.kDLCPU, 0) if self.device.type == "tiny" else device_of(self)

    @functools.wraps(take)
    def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> torch.Tensor:
        if device is None or torch.device(device).type != "tiny":
            return take(ext_tensor, device=device, copy=copy)
        # A tensor of the CPU is taken as it is: others of its storage then are aliases here too.
        is_tensor = isinstance(ext_tensor, torch.Tensor) and ext_tensor.device.type == "cpu" and not copy
        given = ext_tensor if is_tensor else take(ext_tensor, copy=copy)
        device = torch.device(device)
        return from_host(given, device) if is_host() and given.device.type == "cpu" else given.to(device)

    torch.Tensor.__dlpack__ = __dlpack__  # type: ignore[method-assign]
    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign]
    torch.from_dlpack = torch.utils.dlpack.from_dlpack = from_dlpack


def from_host(tensor: torch.Tensor, device: torch.device | str = "tiny") -> torch.Tensor:
    """A tensor of the device on the memory of a CPU tensor, which it keeps alive."""
    index = torch.device(device).index
    return _C.from_host(tensor.detach(), _C.current_device() if index is None else index)


# ---- other processes ----


def _rebuild(host: torch.Tensor, kind: type, requires_grad: bool, device: torch.device) -> torch.Tensor:
    tensor = from_host(host, device) if is_host() else host.to(device)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _register_processes() -> None:
    """Tensors go to other processes as shared memory, which both then compute in."""
    from multiprocessing.reduction import ForkingPickler

    from torch.multiprocessing import reductions

    reduce_tensor = reductions.reduce_tensor

    @functools.wraps(reduce_tensor)
    def reduce(tensor: torch.Tensor) -> Any:
        if tensor.device.type != "tiny":
            return reduce_tensor(tensor)
        if tensor.requires_grad and not tensor.is_leaf:
            return reduce_tensor(tensor)  # which refuses it
        return _rebuild, (_in_shared_memory(tensor.detach()), type(tensor), tensor.requires_grad, tensor.device)

    reductions.reduce_tensor = reduce
    kinds: list[type] = [torch.Tensor, torch.nn.Parameter, *torch._tensor_classes]
    for kind in kinds:
        ForkingPickler.register(kind, reduce)


def _in_shared_memory(tensor: torch.Tensor) -> torch.Tensor:
    if not is_host() or tensor.untyped_storage().nbytes() == 0:
        return tensor.cpu()
    host = _C.owner_view(tensor)
    if host is None or not host.is_shared():
        _C.move_to(tensor, torch.UntypedStorage._new_shared(tensor.untyped_storage().nbytes()))
        host = _C.owner_view(tensor)
    assert host is not None
    return host


# ---- tinygrad ----


def to_tinygrad(tensor: torch.Tensor) -> Any:
    """A tinygrad tensor on the same memory, a view of it where this is one. What was computed here later is seen there
    after `torch.tiny.synchronize()`. Where the device has memory of its own, it is a copy."""
    from .engine import exchange

    return exchange.to_tinygrad(tensor if tensor.device.type == "tiny" else tensor.to("tiny"))


def from_tinygrad(tensor: Any, device: torch.device | str = "tiny") -> torch.Tensor:
    """A tensor of the device on a tinygrad tensor's memory, which is computed first; a view of one is copied. Where the
    device has memory of its own, it is a copy."""
    from .engine import exchange

    index = torch.device(device).index
    return exchange.from_tinygrad(tensor, _C.current_device() if index is None else index)


def register() -> None:
    _register_dlpack()
    _register_processes()
