"""Steps so small that Python, autograd and recording are most of them: plain eager code on both devices.

Each contender is a process of its own on one thread; they take turns, and processor time is what is compared.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import torch
from torch import nn

from .harness import EAGER, TINY
from .part import Table, run
from .served import Contender, serve

GOAL = 0.9


class Autoencoder(nn.Module):
    """A variational one, on 784 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(784, 256)
        self.mean, self.spread = nn.Linear(256, 16), nn.Linear(256, 16)
        self.decode = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 784))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.encode(x).relu()
        mean, spread = self.mean(hidden), self.spread(hidden)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        rebuilt = nn.functional.binary_cross_entropy_with_logits(self.decode(z), x, reduction="sum")
        return rebuilt - 0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum()


def mlp(device: str) -> Callable[[], float]:
    layers = nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    model = nn.Sequential(*layers).to(device)
    x, y = torch.randn(32, 32).to(device), torch.randint(0, 4, (32,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    return training(lambda: nn.functional.cross_entropy(model(x), y), optimizer)


def autoencoder(device: str) -> Callable[[], float]:
    model, x = Autoencoder().to(device), torch.rand(32, 784).to(device)
    return training(lambda: model(x), torch.optim.Adam(model.parameters(), lr=1e-3))


def training(loss_of: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> Callable[[], float]:
    def train() -> float:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.item()

    return train


def encoder(device: str) -> Callable[[], float]:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device).eval()
    x = torch.randn(8, 16, 64).to(device)

    def infer() -> float:
        with torch.inference_mode():
            return model(x).abs().sum().item()

    return infer


CASES = {
    "MLP of 32-64-64-4, batch 32, SGD with momentum": mlp,
    "variational autoencoder of 784 pixels, batch 32, Adam": autoencoder,
    "TransformerEncoder of 2 layers of 64, 8 x 16 tokens, inference": encoder,
}


def measure(quick: bool) -> Table:
    table = Table(
        "Small steps",
        "Microseconds of the calling thread's processor time of a step whose result is read, medians of rounds in "
        f"turns. Goal: {GOAL} of eager's.",
        ["step", "eager CPU µs", "tiny µs", "ratio", "after 130 steps, eager", "tiny"],
    )
    for case in list(CASES)[: 1 if quick else None]:
        pair = {who: Contender("bench.small_steps", who, case) for who in (EAGER, TINY)}
        last = {who: contender.said("RIGHT") for who, contender in pair.items()}
        times: dict[str, list[float]] = {who: [] for who in pair}
        for _ in range(3 if quick else 15):
            for who, contender in pair.items():
                times[who].append(contender.round())
        for contender in pair.values():
            contender.stop()
        ratio = statistics.median(ours / theirs for theirs, ours in zip(times[EAGER], times[TINY], strict=True))
        took = [f"{statistics.median(times[who]) * 1e6:.0f}" for who in pair]
        table.add(case, *took, f"{ratio:.2f}", *(f"{value:.6g}" for value in last.values()))
        table.figures[case] = ratio
    return table


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _, _, who, case = sys.argv
        torch.manual_seed(0)
        serve(CASES[case]("tiny" if who == TINY else "cpu"), who)
    else:
        run(measure, __doc__)
