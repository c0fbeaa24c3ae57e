"""`torch.compile` on a small network: steps so small that what PyTorch's own calls take is most of them.

Each contender is a process of its own on one thread; they take turns, and processor time is what is compared.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import torch
from torch import nn

from .harness import EAGER, INDUCTOR
from .part import Table, run
from .served import Contender, serve

LOSS, WHOLE, ONE_GRAPH = "loss and optimizer compiled", "usual step compiled", "step written out, one graph"
TINY_EAGER, TINY_MODEL = "tiny, eager", "tiny"
CONTENDERS = (
    EAGER,
    INDUCTOR,
    TINY_EAGER,
    TINY_MODEL,
    *(f"{w}, {h}" for h in (LOSS, WHOLE, ONE_GRAPH) for w in (INDUCTOR, TINY_MODEL)),
)
CASES = ("SGD", "AdamW", "inference")
GOAL = 0.6


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def step_of(who: str, case: str) -> Callable[[], float]:
    device = "tiny" if who.startswith("tiny") else "cpu"
    model = network().to(device)
    x, y = torch.randn(32, 32).to(device), torch.randint(0, 10, (32,)).to(device)
    if who in (INDUCTOR, TINY_MODEL):
        model = torch.compile(model)
    if case == "inference":

        def infer() -> float:
            with torch.no_grad():
                return model(x).sum().item()

        return infer
    if who.endswith(ONE_GRAPH):
        return one_graph(model, x, y)
    optimizer = getattr(torch.optim, case)(model.parameters(), lr=1e-3)
    if who.endswith(WHOLE):
        return whole_step(model, optimizer, x, y)
    loss_of, update = lambda x, y: nn.functional.cross_entropy(model(x), y), optimizer.step
    if who.endswith(LOSS):
        loss_of, update = torch.compile(loss_of), torch.compile(update)

    def train() -> float:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        update()
        return loss.item()

    return train


def whole_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> Callable[[], float]:
    """The step as it is usually written, in one compiled function."""
    torch._dynamo.config.trace_autograd_ops = True

    @torch.compile
    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return lambda: train(x, y).item()


def one_graph(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], float]:
    """What dynamo takes as one graph: gradients by `torch.autograd.grad`, and SGD written out."""
    torch._dynamo.config.trace_autograd_ops = True
    parameters = list(model.parameters())

    @torch.compile
    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=1e-3)
        return loss.detach()

    return lambda: train(x, y).item()


def measure(quick: bool) -> Table:
    table = Table(
        "torch.compile on a small network",
        "Three layers of width 64 at batch 32 and a loss that is read in each step: microseconds of processor time of "
        "the calling thread, medians of rounds in turns. Goals: a step with SGD takes at most "
        f"{GOAL} of eager's time, and at most Inductor's.",
        ["case", "contender", "µs a step", "of eager", "result"],
    )
    for case in CASES[:1] if quick else CASES:
        left_out = {"SGD": (), "AdamW": (ONE_GRAPH,), "inference": (LOSS, WHOLE, ONE_GRAPH)}[case]
        contenders = {who: Contender("bench.compiled", who, case) for who in CONTENDERS if not who.endswith(left_out)}
        results = {who: contender.said("RIGHT") for who, contender in contenders.items()}
        times: dict[str, list[float]] = {who: [] for who in contenders}
        for _ in range(3 if quick else 11):
            for who, contender in contenders.items():
                times[who].append(contender.round())
        for who, contender in contenders.items():
            contender.stop()
            ratio = statistics.median(a / b for a, b in zip(times[who], times[EAGER], strict=True))
            took = statistics.median(times[who]) * 1e6
            table.add(case, who, f"{took:.0f}", f"{ratio:.2f}", f"{results[who]:.6f}")
            table.figures[f"{case}: {who}"] = ratio
    return table


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _, _, who, case = sys.argv
        serve(step_of(who, case), who)
    else:
        run(measure, __doc__)
