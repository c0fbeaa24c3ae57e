"""Joins the parts: makes "tiny" a device at `import torch`, and sets the compiler up at the device's first use."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from collections.abc import Callable

import torch

_kernels: torch.library.Library | None = None


def load() -> None:
    """Cheap, as it runs in every `import torch`: tinygrad is imported only when a tensor is made on the device."""
    from . import _C, distributed, dynamo, interchange, libraries, storages, tiny

    torch.utils.rename_privateuse1_backend("tiny")
    torch._register_device_module("tiny", tiny)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _C.set_device_count(int(os.environ.get("TORCH_TINY_DEVICES", "1")))
    if mode := os.environ.get("TORCH_TINY_COMPILE"):
        tiny.compile_mode(mode)
    _C.set_prepare(prepare)
    dynamo.register()
    distributed.register()
    libraries.register()
    interchange.register()
    storages.register()


def prepare() -> None:
    """Called by the runtime before the first tensor of the device is made; again, if it was interrupted."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from . import _C, cache, data_dependent, ops
    from .choice import chosen_device, is_host, library, names_compiler, open_chosen
    from .facts import facts
    from .service import requests
    from .service.bounds import MAY_PASS
    from .trace.nodes import Number, Region, Storage, Trace

    if not is_host():
        from .engine.devices import most_bytes, most_pending

        if library() == "cuda":
            from .engine.cuda import share_context

            share_context()
        open_chosen()
        _C.set_pending_bytes(most_pending())
        _C.set_most_bytes(chosen_device(), most_bytes())
    if names_compiler() or not is_host():
        from .engine.devices import lacking

        _C.set_lacking(chosen_device(), lacking())
    if os.environ.get("TORCH_TINY_DEBUG", "0") >= "1":
        how = f"DEV={os.environ['DEV']}" if os.environ.get("DEV") else "the first that is here"
        print(f"tiny: the device is tinygrad's {chosen_device()} ({how})", file=sys.stderr)
    hooks = {
        "op_traits": ops.op_traits,
        "warn_fallback": ops.warn_fallback,
        "compile": _later("compile", "compile_trace"),
        "compile_sizes": _later("sizes", "compile_sizes"),
        "request": requests.request,
        "load": _later("remote", "load"),
        "new_buffer": _later("devices", "new_buffer"),
        "wrap": _later("devices", "wrap_for"),
        "begin_direct": _later("devices", "begin_direct"),
        "upload": _later("devices", "upload"),
        "download": _later("devices", "download"),
        "synchronize": _later("devices", "synchronize"),
        "empty_cache": _later("devices", "empty_cache"),
        "memory_info": _later("devices", "memory_info"),
        "Region": Region,
        "Number": Number,
        "Storage": Storage,
        "Trace": Trace,
        "MAY_PASS": MAY_PASS,
    }
    global _kernels
    _kernels = _kernels or data_dependent.register()
    recorded = facts().recorded
    _C.set_up(hooks, is_host(), library())
    if folder := cache.folder():
        _C.set_disk_cache(folder, cache.digest(chosen_device()), cache.BOUND)
    if not is_host():
        atexit.register(_C.clear_programs)  # they hold Python objects, which must not outlive the interpreter
    _C.register_recorder(recorded)
    atexit.register(_C.wait_for_autograd)
    _print_from_the_cpu()
    register_optimizer_step_post_hook(_after_optimizer_step)


def _later(module: str, name: str) -> Callable:
    """A function of the engine, which is imported when it is first called."""

    def call(*arguments):
        return getattr(importlib.import_module(f"torch_tinygrad.engine.{module}"), name)(*arguments)

    return call


def _after_optimizer_step(optimizer, args, kwargs) -> None:
    """A step is where a training loop repeats: flushing there gives every step the same trace."""
    from . import _C

    _C.flush_step(optimizer.param_groups)


def _print_from_the_cpu() -> None:
    """PyTorch formats a tensor element by element: one copy to the CPU first saves a flush for each."""
    from torch import _tensor_str

    format_values = _tensor_str._tensor_str

    def formatted(self: torch.Tensor, indent: int) -> str:
        return format_values(self.cpu() if self.device.type == "tiny" else self, indent)

    _tensor_str._tensor_str = formatted
