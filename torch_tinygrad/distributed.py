"""torch.distributed: "gloo" takes tensors of the device, and is what a group uses that names no backend.

The collectives themselves are in csrc/operators/collectives.cpp.
"""

from __future__ import annotations

from types import ModuleType

from .on_import import after_import


def _gloo(module: ModuleType) -> None:
    backend = module.Backend  # type: ignore[attr-defined]
    backend.default_device_backend_map["tiny"] = backend.GLOO
    for name in (backend.GLOO, backend.FAKE):
        if "tiny" not in backend.backend_capability[name]:
            backend.backend_capability[name].append("tiny")


def register() -> None:
    after_import("torch.distributed.distributed_c10d", _gloo)
