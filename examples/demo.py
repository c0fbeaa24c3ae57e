"""Trains one small CNN on `cpu` and on `tiny`, from the same weights on the same batches, and compares what it costs.

The training loop is plain eager PyTorch; nothing in it knows which device it runs on.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

WARM_UP = 3


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.Conv2d(32, 32, 5),
        nn.ReLU(),
        nn.BatchNorm2d(32),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.BatchNorm2d(64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(576, 10),
    )


class Shapes:
    """Batches of 28 x 28 images: ten smooth random patterns, each shifted and drowned in noise."""

    def __init__(self, seed: int = 0):
        self.random = torch.Generator().manual_seed(seed)
        coarse = torch.randn(10, 1, 7, 7, generator=self.random)
        self.patterns = F.interpolate(coarse, size=(28, 28), mode="bicubic")

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(0, 10, (size,), generator=self.random)
        shifts = torch.randint(-2, 3, (size, 2), generator=self.random).tolist()
        shifted = [torch.roll(self.patterns[c], s, (1, 2)) for c, s in zip(labels.tolist(), shifts, strict=True)]
        noise = torch.randn(size, 1, 28, 28, generator=self.random)
        return torch.stack(shifted) + 1.5 * noise, labels


class Trainer:
    """A network on one device, its optimizer, and what each step gave and took."""

    def __init__(self, device: str, model: nn.Module):
        self.device = device
        self.model = copy.deepcopy(model).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(images.to(self.device)), labels.to(self.device))
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)

    def milliseconds(self) -> float:
        """Of a step once everything is warm."""
        return statistics.median(self.seconds[WARM_UP:] or self.seconds) * 1e3


def bar(loss: float, full: float, width: int = 24) -> str:
    return "#" * max(0, min(width, round(width * loss / full)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="training steps on each device (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images a step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the data (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.steps < 1 or arguments.batch < 2:
        parser.error("needs at least 1 step and 2 images a batch")

    torch.manual_seed(arguments.seed)
    data, model = Shapes(arguments.seed), network()
    cpu, tiny = Trainer("cpu", model), Trainer("tiny", model)
    torch.tiny.synchronize()
    torch.tiny.reset_stats()
    kernels = 0

    hardware = torch.tiny.get_device_name()
    print(f"{arguments.steps} steps of {arguments.batch} images; tiny runs on tinygrad's {hardware}\n")
    print(f"{'step':>5} {'cpu loss':>9} {'tiny loss':>10} {'cpu ms':>8} {'tiny ms':>8}")
    for step in range(arguments.steps):
        images, labels = data.batch(arguments.batch)
        cpu.step(images, labels)
        before = torch.tiny.stats()["kernels"]
        tiny.step(images, labels)
        kernels = torch.tiny.stats()["kernels"] - before
        if step < WARM_UP or step % max(1, arguments.steps // 20) == 0 or step == arguments.steps - 1:
            a, b = cpu.losses[-1], tiny.losses[-1]
            times = f"{cpu.seconds[-1] * 1e3:8.1f} {tiny.seconds[-1] * 1e3:8.1f}"
            print(f"{step:5} {a:9.4f} {b:10.4f} {times}  {bar(b, tiny.losses[0])}", flush=True)

    stats = torch.tiny.stats()
    apart = max(abs(a - b) / max(abs(a), 1e-6) for a, b in zip(cpu.losses, tiny.losses, strict=True))
    print(
        f"\nms a step    cpu {cpu.milliseconds():.1f}   tiny {tiny.milliseconds():.1f}   (median after {WARM_UP} steps)"
    )
    print(f"first step   cpu {cpu.seconds[0] * 1e3:.0f} ms   tiny {tiny.seconds[0] * 1e3:.0f} ms, compiling")
    print(f"kernels      {kernels} a step")
    print(f"programs     {stats['compiles']} compiles, {stats['loads']} loads from disk, {stats['replays']} replays")
    print(f"fallbacks    {stats['fallbacks'] or 'none'}")
    print(f"losses       at most {apart:.1e} apart (relative)")


if __name__ == "__main__":
    main()
