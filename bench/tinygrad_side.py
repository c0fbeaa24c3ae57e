"""What the TinyJit contenders share: tensors and weights brought over from PyTorch, and waiting for the device.

This is tinygrad as its own users write it; nothing here goes through the `tiny` device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_tinygrad import clang

clang.provide()

from tinygrad import Context, Device, Tensor, TinyJit  # noqa: E402
from tinygrad.nn.state import get_parameters, load_state_dict  # noqa: E402


def tensor(value: torch.Tensor) -> Tensor:
    """A realized copy on tinygrad's default device."""
    return Tensor(value.detach().cpu().numpy()).to(Device.DEFAULT).contiguous().realize()


def finished(value: Any) -> Any:
    Device[Device.DEFAULT].synchronize()
    return value


def load(model: Any, weights: dict[str, torch.Tensor]) -> Any:
    """Fills a tinygrad model whose attributes are named as the PyTorch module's."""
    prefix = "layers." if hasattr(model, "layers") else ""  # nn.Sequential names its layers by number alone
    load_state_dict(model, {prefix + name: tensor(value) for name, value in weights.items()}, verbose=False)
    return model


def training(model: Any, optimizer: Any, loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """One jitted training step."""

    @TinyJit
    def step() -> Tensor:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            value = loss().backward()
            return value.realize(*optimizer.schedule_step())

    return lambda: finished(step())


__all__ = ["finished", "get_parameters", "load", "tensor", "training"]
