"""What nobody should wait for: first steps with empty caches, steps of sizes never seen, steps while others compile."""

from __future__ import annotations

import os
import statistics
import tempfile

from .harness import EAGER, TINY
from .part import Table, run, said

FIRST = """
import time, torch
from bench.harness import Settings, WORKLOADS
from bench import contender
contender.load_groups()
step = WORKLOADS[{name!r}].build(Settings(repeats=1, quick={quick}, contenders=()))[{who!r}]()
begin = time.perf_counter()
step()
print("TIMES", time.perf_counter() - begin)
"""

# A transformer's training step; sizes differ from step to step.
SIZES = """
import time, torch
from torch import nn
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to({device!r})
optimizer = torch.optim.AdamW(model.parameters())
def step(batch, length):
    x = torch.randn(batch, length, 128).to({device!r})
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
step(8, 32), step(8, 32)
times = []
for i in range({steps}):
    begin = time.perf_counter()
    step(*{size})
    times.append(time.perf_counter() - begin)
print("TIMES", sum(times) / len(times), max(times))
"""

# Steps until their program is there, and how long they took meanwhile.
MEANWHILE = """
import time, torch
from bench.cnn import ResNet18, batch, classification
from bench.training import torch_training
torch.manual_seed(0)
step = torch_training(ResNet18(), classification, batch({batch}, 3, 32))({device!r}, False)
step(), step()
times, begin = [], time.perf_counter()
while time.perf_counter() < begin + {seconds}:
    start = time.perf_counter()
    step()
    times.append(time.perf_counter() - start)
    if {device!r} == "tiny" and len(times) > 3 and not torch.tiny.stats()["compiling"]:
        break
times.sort()
print("TIMES", times[len(times) // 2], times[len(times) * 99 // 100], times[-1])
"""

SIZE_PROGRAMS = {
    "a new length each step": "(8, 33 + i)",
    "a new batch size each step": "(2 + i, 32)",
}
NETWORKS = ("demo CNN, training, batch 64", "ResNet-18, training, batch 16", "GPT, training, batch 8")


def seconds(program: str, device: str) -> list[float]:
    """In a new process with empty caches."""
    with tempfile.TemporaryDirectory() as caches:
        environment = {**os.environ, "XDG_CACHE_HOME": caches, "CACHEDB": f"{caches}/tinygrad.db"}
        environment["TORCH_TINY_CACHE"] = f"{caches}/programs"
        environment["TORCH_TINY_COMPILE"] = "auto"
        if device == "cpu":
            environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        return [float(t) for t in said(program, "TIMES", environment)]


def measure(quick: bool) -> Table:
    table = Table(
        "What is new",
        "Milliseconds, medians of processes that take turns, with empty caches. Goals: a first step 1.5 of eager's, "
        "steps of new sizes 1.15 in the mean, steps while a program is compiled 1.6.",
        ["what", "tiny", "eager CPU", "ratio"],
    )
    repeats = 1 if quick else 5

    def rows(names: list[str], program) -> None:
        """A row for each of the times that a program says, which it says in the order of their names."""
        taken: dict[str, list[list[float]]] = {"tiny": [], "cpu": []}
        for _ in range(repeats):
            for device, said_times in taken.items():
                said_times.append([1e3 * time for time in seconds(program(device), device)])
        for column, what in enumerate(names):
            times = {device: [run[column] for run in runs] for device, runs in taken.items()}
            tiny, cpu = (statistics.median(each) for each in times.values())
            table.add(what, f"{tiny:.1f}", f"{cpu:.1f}", f"{tiny / cpu:.2f}")
            table.figures[what] = times

    who = {"tiny": TINY, "cpu": EAGER}
    steps = 10 if quick else 200
    settings = {"batch": 4 if quick else 16, "seconds": 5 if quick else 60}
    for name in NETWORKS:
        rows([f"first step: {name}"], lambda d, name=name: FIRST.format(name=name, quick=quick, who=who[d]))
    for name, size in SIZE_PROGRAMS.items():
        what = [f"transformer, {name}, {value} of {steps}" for value in ("mean", "slowest")]
        rows(what, lambda d, size=size: SIZES.format(device=d, size=size, steps=steps))
    what = [f"ResNet-18, while it is compiled, {value} step" for value in ("median", "99th of 100", "slowest")]
    rows(what, lambda d: MEANWHILE.format(device=d, **settings))
    return table


if __name__ == "__main__":
    run(measure, __doc__)
