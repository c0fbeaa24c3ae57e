"""What the training workloads share: one step of plain PyTorch, for any device."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from .harness import Step

LEARNING_RATE = 1e-2


def torch_training(
    model: nn.Module, loss: Callable[[nn.Module, list[torch.Tensor]], torch.Tensor], inputs: list[torch.Tensor]
) -> Callable[[str, bool], Step]:
    """`make(device, compiled)`: a step that trains its own copy of the model with SGD and returns the loss."""

    def make(device: str, compiled: bool) -> Step:
        own = copy.deepcopy(model).to(device).train()
        moved = [i.to(device) for i in inputs]
        optimizer = torch.optim.SGD(own.parameters(), lr=LEARNING_RATE)
        run = torch.compile(own) if compiled else own

        def step() -> float:
            optimizer.zero_grad()
            value = loss(run, moved)
            value.backward()
            optimizer.step()
            return value.item()

        return step

    return make
