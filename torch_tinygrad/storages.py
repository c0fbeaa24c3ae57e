"""Storages as PyTorch has them: its classes by element type, and bytes that are changed where they lie. Storages of the
device have no address to change them at: a tensor of the bytes does it."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.storage import _dtype_to_storage_type_map, _LegacyStorage


def _legacy_class(dtype: torch.dtype, name: str) -> type:
    """As `torch.FloatStorage` is for the CPU. PyTorch finds the device in the name of its module."""
    made = type(name, (_LegacyStorage,), {"dtype": dtype, "_dtype": dtype, "__module__": "torch.tiny"})
    torch._storage_classes.add(made)
    return made


LEGACY_CLASSES = {name: _legacy_class(dtype, name) for dtype, name in _dtype_to_storage_type_map().items()}


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)  # type: ignore[call-overload]


def register() -> None:
    in_place = torch.UntypedStorage._byteswap

    @functools.wraps(in_place)
    def _byteswap(self: torch.UntypedStorage, size: int) -> Any:
        # Another size than these changes nothing, if it is not refused.
        if self.device.type != "tiny" or size not in (2, 4, 8) or self.nbytes() % size:
            return in_place(self, size)
        elements = bytes_of(self).view(-1, size)
        elements.copy_(elements.flip(1))

    torch.UntypedStorage._byteswap = _byteswap  # type: ignore[method-assign, assignment]
