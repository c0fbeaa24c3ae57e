"""`torch.tiny`: the device module, as `torch.cuda` is for CUDA."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import Any

import torch

from . import _C
from .choice import is_host
from .explain import explain
from .memory import (
    empty_cache,
    ipc_collect,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from .storages import LEGACY_CLASSES
from .streams import (
    Device,
    Event,
    Stream,
    StreamContext,
    _set_stream_by_id,  # noqa: F401 (PyTorch calls it)
    current_stream,
    default_stream,
    index_of,
    set_stream,
    stream,
)

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "can_device_access_peer",
    "compile_mode",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "explain",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "mark_dynamic",
    "mark_static",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "reset_stats",
    "seed",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stats",
    "stream",
    "synchronize",
    "vary_sizes",
    "wait_for_compiles",
]

globals().update(LEGACY_CLASSES)  # torch.tiny.FloatStorage and the like

# `torch.utils.checkpoint` keeps the generators' states only of device modules that say this.
_initialized = True


def is_available() -> bool:
    """Whether the device can be used: it can wherever tinygrad drives something, and the CPU is something."""
    return _C.device_count() > 0


def is_initialized() -> bool:
    return True


def init() -> None:
    _C.check_fork()


def _is_in_bad_fork() -> bool:
    return _C.forked()


def _lazy_init() -> None:
    init()


def device_count() -> int:
    return _C.device_count()


def current_device() -> int:
    return _C.current_device()


def set_device(device: Device) -> None:
    _C.set_current_device(index_of(device))


class device(contextlib.ContextDecorator):
    """Context manager: makes `device` the current one inside it. A negative index or None changes nothing."""

    def __init__(self, device: Any):
        self.index = -1 if device is None else index_of(device)
        self.previous = -1

    def __enter__(self) -> None:
        self.previous = _C.current_device()
        if self.index >= 0:
            _C.set_current_device(self.index)

    def __exit__(self, *_: Any) -> None:
        _C.set_current_device(self.previous)


class device_of(device):
    """Context manager: makes the device of a tensor the current one inside it, if it is one of ours."""

    def __init__(self, tensor: torch.Tensor):
        super().__init__(tensor.device if tensor.device.type == "tiny" else None)


def _exchange_device(index: int) -> int:
    previous = _C.current_device()
    if index >= 0:
        _C.set_current_device(index)
    return previous


_maybe_exchange_device = _exchange_device


def synchronize(device: Device = None) -> None:
    """Runs everything pending and waits for it."""
    torch.accelerator.synchronize(index_of(device))


def stats() -> dict[str, Any]:
    """Counts since the start or the last `reset_stats`: `nodes` recorded, `flushes`, of which `compiles` ran a program
    for the first time, `loads` found theirs on disk, `replays` ran one known already and `direct` ran node by node
    through ATen; `graphs` of torch.compile that were appended as a whole; `kernels` run, `bytes_moved` (the engine's
    estimate), `fallbacks`: how often each operator ran on the CPU for want of a lowering, `compiling`: programs being
    compiled now, `not_compiled`: why traces stay direct, `not_variable`: why sizes that vary have no one program."""
    return _C.stats()


def reset_stats() -> None:
    _C.reset_stats()


COMPILE_MODES = ("auto", "always", "never", "mixed")


class compile_mode(contextlib.ContextDecorator):
    """When traces are compiled, for the whole process: "auto" runs what is new directly and compiles it behind when it
    comes again, "always" compiles what is new before it runs, "never" runs everything directly, and "mixed" draws one
    of these two for each flush, for tests. `TORCH_TINY_COMPILE` sets it too. As a function it stays set; as a context
    manager, the mode before it comes back."""

    def __init__(self, mode: str):
        if mode not in COMPILE_MODES:
            raise ValueError(f"compile_mode is one of {', '.join(COMPILE_MODES)}, not {mode!r}")
        self.mode = COMPILE_MODES.index(mode)
        self.previous = _C.compile_mode()
        _C.set_compile_mode(self.mode)

    def __enter__(self) -> None:
        _C.set_compile_mode(self.mode)

    def __exit__(self, *_: Any) -> None:
        _C.set_compile_mode(self.previous)

    def __call__(self, function: Any) -> Any:
        _C.set_compile_mode(self.previous)  # a decorator sets it only while the function runs
        return super().__call__(function)

    def _recreate_cm(self) -> compile_mode:
        return compile_mode(COMPILE_MODES[self.mode])


def vary_sizes(vary: bool) -> bool:
    """Whether traces that differ in sizes alone share a program (`TORCH_TINY_SIZES`); gives what held before."""
    return _C.set_sizes_vary(vary)


def mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """Says that this size of the tensor will be another one next time. What is computed from the tensor is not compiled
    for the first size, but runs directly until a second one comes, and is then compiled for many sizes at once. Holds
    for the tensor's memory, and so for its views; mark each new tensor."""
    _C.mark_size(tensor, dim, True)


def mark_static(tensor: torch.Tensor, dim: int) -> None:
    """Says that this size of the tensor is worth a program of its own: it never becomes a variable of one for many
    sizes. Holds for the tensor's memory, and so for its views; mark each new tensor."""
    _C.mark_size(tensor, dim, False)


def wait_for_compiles(timeout: float | None = None) -> bool:
    """Waits until nothing is being compiled; the next flush of each trace takes its program up. False after `timeout`
    seconds."""
    requests = sys.modules.get("torch_tinygrad.service.requests")
    return requests is None or requests.wait(timeout)


def get_device_name(device: Device = None) -> str:
    """tinygrad's name of the hardware, such as "CPU", "CUDA" or "METAL:1"."""
    from .engine.devices import device_name

    return device_name(index_of(device))


@dataclass(frozen=True)
class DeviceProperties:
    name: str
    total_memory: int  # 0 where the driver does not tell
    multi_processor_count: int


def get_device_properties(device: Device = None) -> DeviceProperties:
    index = index_of(device)
    if is_host():
        return DeviceProperties(get_device_name(index), mem_get_info(index)[1], os.cpu_count() or 1)
    from .engine.devices import total_memory

    return DeviceProperties(get_device_name(index), total_memory(index), 1)


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """The types of which there can be tensors, as `torch.accelerator.get_device_capability` tells."""
    return torch.accelerator.get_device_capability(index_of(device))


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return torch.bfloat16 in get_device_capability()["supported_dtypes"]


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Whether devices read each other's memory: the host's units share theirs."""
    return is_host() or index_of(device) == index_of(peer_device)


# ---- random numbers ----


def _generator(device: Device) -> torch.Generator:
    return _C.default_generator(index_of(device))


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        _generator(index).manual_seed(int(seed))


def seed() -> None:
    _generator(None).seed()


def initial_seed() -> int:
    return _generator(None).initial_seed()


def get_rng_state(device: Device = "tiny") -> torch.Tensor:
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "tiny") -> None:
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return tuple(_generator(index) for index in range(device_count()))
    raise AttributeError(f"module 'torch.tiny' has no attribute {name!r}")
