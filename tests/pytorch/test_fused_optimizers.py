"""Optimizers with `fused=True` are kernels of the program, not fallbacks, with the CPU's results."""

from __future__ import annotations

import pytest
import torch

from tests.differential import DEVICE, ON_TINY

pytestmark = pytest.mark.skipif(not ON_TINY, reason="about the device alone")

OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {}),
    "AdamW, the rate a tensor": (torch.optim.AdamW, {"lr": 0.01, "tensor_lr": True}),
    "Adam with decay": (torch.optim.Adam, {"weight_decay": 0.1}),
    "Adam with maxima": (torch.optim.Adam, {"amsgrad": True, "maximize": True}),
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD, Nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "SGD, dampened": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "maximize": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.01}),
}


@pytest.fixture(autouse=True)
def compiled():
    with torch.tiny.compile_mode("always"):
        yield


def trained(device: str, name: str, dtype: torch.dtype, scaled: bool) -> list[torch.Tensor]:
    """Parameters, gradients and states after steps of which the third is skipped for its gradients."""
    make, options = OPTIMIZERS[name]
    options = dict(options)
    if options.pop("tensor_lr", False):
        options["lr"] = torch.tensor(options["lr"])
    torch.manual_seed(0)
    network = torch.nn.Linear(8, 4).to(device, dtype)
    optimizer = make(network.parameters(), fused=True, **options)
    x = torch.linspace(-1, 1, 16).reshape(2, 8).to(device, dtype)
    for step in range(4):
        optimizer.zero_grad()
        network(x).square().sum().backward()
        if scaled:
            optimizer.grad_scale = torch.full((), 4.0, device=device)
            optimizer.found_inf = torch.full((), float(step == 2), device=device)
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
    states = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return [t.detach().cpu() for p in network.parameters() for t in (p, p.grad)] + [s.cpu() for s in states]


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_the_cpus_and_kernels(name, scaled):
    torch.tiny.reset_stats()
    got = trained(DEVICE, name, torch.float32, scaled)
    assert not torch.tiny.stats()["fallbacks"]
    torch.testing.assert_close(got, trained("cpu", name, torch.float32, scaled))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(dtype):
    torch.testing.assert_close(trained(DEVICE, "AdamW", dtype, False), trained("cpu", "AdamW", dtype, False))


def test_fused_takes_no_more_kernels_than_foreach():
    def kernels(**options) -> int:
        torch.manual_seed(0)
        network = torch.nn.Linear(8, 4).to(DEVICE)
        optimizer = torch.optim.AdamW(network.parameters(), **options)
        x = torch.ones(2, 8).to(DEVICE)
        for _ in range(4):
            torch.tiny.reset_stats()
            optimizer.zero_grad()
            network(x).square().sum().backward()
            optimizer.step()
        return torch.tiny.stats()["kernels"]

    assert kernels(fused=True) <= kernels(foreach=True) + 2  # the two steps that are tensors here, numbers there
