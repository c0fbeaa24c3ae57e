"""torch.jit: networks traced and scripted on the device, saved and loaded: results and gradients are the CPU's."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 2, 2, 2),
        nn.Flatten(),
        nn.Linear(288, 5),
    ).eval()


def image(device: str) -> torch.Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()


def loaded(function: torch.jit.ScriptModule, device: str) -> torch.jit.ScriptModule:
    file = io.BytesIO()
    torch.jit.save(function, file)
    file.seek(0)
    return torch.jit.load(file, map_location=device)


WAYS = {
    "traced": lambda m, x: torch.jit.trace(m, x),
    "scripted": lambda m, x: torch.jit.script(m),
    "traced, saved and loaded": lambda m, x: loaded(torch.jit.trace(m, x), x.device),
    "scripted, saved and loaded": lambda m, x: loaded(torch.jit.script(m), x.device),
}


@pytest.mark.parametrize("way", WAYS)
def test_values_and_gradients_are_the_cpus(way):
    found = {}
    for device in ("cpu", "tiny"):
        x = image(device)
        function = WAYS[way](network().to(device), x)
        for _ in range(3):  # the first calls are watched, later ones run what was made of that
            x.grad = None
            result = function(x)
            result.square().sum().backward()
        found[device] = [result.detach().cpu(), x.grad.cpu()]
    torch.testing.assert_close(found["tiny"], found["cpu"])


def test_a_trace_holds_what_the_cpus_holds():
    def operators(device: str) -> list[str]:
        return [n.kind() for n in torch.jit.trace(network().to(device), image(device)).inlined_graph.nodes()]

    assert operators("tiny") == operators("cpu")


def test_frozen_networks_run():
    x = image("tiny")
    frozen = torch.jit.freeze(torch.jit.script(network().to("tiny")))
    torch.testing.assert_close(frozen(x).cpu(), network()(image("cpu")))


def test_control_flow_reads_values():
    @torch.jit.script
    def walk(x: torch.Tensor, steps: int) -> torch.Tensor:
        for _ in range(steps):
            if bool(x.sum() > 0):
                x = x - 0.5
            else:
                x = x * 2 + 1
        return x

    torch.testing.assert_close(walk(image("tiny"), 5).cpu(), walk(image("cpu"), 5))
