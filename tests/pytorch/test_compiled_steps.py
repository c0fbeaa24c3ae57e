"""torch.compile of whole training steps: zero_grad, forward, backward and the optimizer are one graph."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.differential import DEVICE, ON_TINY, normal
from tests.pytorch.test_recorded_graphs import fresh  # noqa: F401

pytestmark = [
    pytest.mark.skipif(not ON_TINY, reason="about the device alone"),
    pytest.mark.skipif(not hasattr(torch._dynamo.config, "trace_autograd_ops"), reason="PyTorch's switch is newer"),
]
STEPS = 8


@pytest.fixture(autouse=True)
def switch():
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        yield


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(i: int, device: str):
    return normal(16, 8, seed=i, device=device), ((torch.arange(16) * (i + 1)) % 4).to(device)


class Steps:
    """The same steps eagerly on the CPU and compiled on the device."""

    def __init__(self, optimizer, zero: str = "first", of=network, **options):
        one = of()
        self.networks = [one, copy.deepcopy(one).to(DEVICE)]
        self.optimizers = [optimizer(n.parameters()) for n in self.networks]
        self.zero = zero
        self.runs = [self.step_of(0), torch.compile(self.step_of(1), **{"fullgraph": True, **options})]
        self.graphs: list[int] = []

    def step_of(self, which: int):
        network, optimizer, zero = self.networks[which], self.optimizers[which], self.zero

        def step(x, y):
            if zero == "first":
                optimizer.zero_grad()
            loss = F.cross_entropy(network(x), y)
            loss.backward()
            optimizer.step()
            if zero == "last":
                optimizer.zero_grad()
            return loss.detach()

        return step

    def run(self, steps: int = STEPS, between=lambda optimizer, i: None) -> None:
        losses: list[list[float]] = [[], []]
        for i in range(steps):
            for which, device in enumerate(("cpu", DEVICE)):
                before = torch.tiny.stats()["graphs"]
                losses[which].append(self.runs[which](*batch(i, device)).item())
                if which:
                    self.graphs.append(torch.tiny.stats()["graphs"] - before)
                between(self.optimizers[which], i)
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
        for got, want in zip(self.networks[1].parameters(), self.networks[0].parameters(), strict=True):
            torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=1e-4, atol=1e-5)
            assert (got.grad is None) == (want.grad is None)
            if want.grad is not None:
                torch.testing.assert_close(got.grad.cpu(), want.grad, rtol=1e-4, atol=1e-5)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "Adam, maxima": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "SGD, one by one": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_one_graph(name):
    steps = Steps(OPTIMIZERS[name])
    steps.run()
    assert steps.graphs[-3:] == [1, 1, 1]  # appended as a whole


@pytest.mark.parametrize("zero", ["last", "never"])
def test_gradients_are_cleared_after_the_step_or_accumulated(zero):
    steps = Steps(OPTIMIZERS["SGD"], zero)
    steps.run()
    assert steps.graphs[-3:] == [1, 1, 1]


def test_by_the_backend_tiny():
    Steps(OPTIMIZERS["AdamW"], backend="tiny").run()


def test_an_optimizer_that_has_made_steps():
    steps = Steps(OPTIMIZERS["AdamW"])
    compiled, steps.runs[1] = steps.runs[1], steps.step_of(1)
    steps.run(3)
    steps.runs[1] = compiled
    steps.run()
    steps.runs[1] = steps.step_of(1)
    steps.run(3)


def test_rates_that_change():
    def slower(optimizer, i):
        optimizer.param_groups[0]["lr"] *= 0.9

    Steps(OPTIMIZERS["SGD"], fullgraph=False).run(12, slower)


def test_frozen_and_unused_parameters():
    def of():
        one = network()
        one[0].weight.requires_grad_(False)
        one.register_parameter("unused", nn.Parameter(torch.ones(3)))
        return one

    Steps(OPTIMIZERS["AdamW"], of=of).run()


def test_dropout_and_batch_norm():
    def of():
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.0), nn.Linear(16, 4))

    Steps(OPTIMIZERS["momentum"], of=of).run()


def test_fused_optimizers_break_the_graph():
    Steps(lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True), fullgraph=False).run()


def test_hooks_of_optimizers_run_in_every_step():
    steps = Steps(OPTIMIZERS["SGD"], fullgraph=False)
    seen: list[int] = []
    steps.optimizers[1].register_step_post_hook(lambda *_: seen.append(len(seen)))
    steps.run()
    assert len(seen) == STEPS


def test_hooks_that_come_later_run():
    steps = Steps(OPTIMIZERS["SGD"], fullgraph=False)
    seen: list[int] = []
    steps.run(5)
    steps.optimizers[1].register_step_pre_hook(lambda *_: seen.append(len(seen)))
    steps.run(3)
    assert len(seen) == 3


def test_a_loss_that_keeps_its_graph_breaks_it():
    network_ = network().to(DEVICE)
    optimizer = torch.optim.SGD(network_.parameters(), lr=0.1)

    @torch.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(network_(x), y)
        loss.backward()
        optimizer.step()
        return loss

    reference = Steps(OPTIMIZERS["SGD"]).runs[0]
    for i in range(STEPS):
        got, want = step(*batch(i, DEVICE)).item(), reference(*batch(i, "cpu")).item()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_without_the_switch_the_step_is_in_pieces():
    with torch._dynamo.config.patch(trace_autograd_ops=False):
        Steps(OPTIMIZERS["AdamW"], fullgraph=False).run()
