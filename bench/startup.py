"""Time to first result: the demo CNN's first training step with empty caches, and again in a second process."""

from __future__ import annotations

import os
import tempfile

from .part import Table, run, said

PROGRAM = """
import time
begin = time.perf_counter()
import torch
imported = time.perf_counter()
from bench.cnn import batch, classification, demo_network
from bench.training import torch_training
torch.manual_seed(0)
step = torch_training(demo_network(), classification, batch({batch}, 1, 28))({device!r}, False)
ready = time.perf_counter()
step()
first = time.perf_counter()
step(); step()
third = time.perf_counter()
print("TIMES", imported - begin, ready - imported, first - ready, third - first)
"""


def process(device: str, size: int, caches: str) -> list[float]:
    """Seconds for: import, model and data on the device, the first step, the next two."""
    environment = {**os.environ, "XDG_CACHE_HOME": caches, "CACHEDB": f"{caches}/tinygrad.db"}
    environment.setdefault("TORCH_TINY_CACHE", f"{caches}/programs")
    program = PROGRAM.format(device=device, batch=size)
    return [float(t) for t in said(program, "TIMES", environment)]


def measure(quick: bool) -> Table:
    table = Table(
        "Time to first result",
        "Seconds, the demo CNN's training step at batch 64 in new processes. Goals for the first step: 8 s with empty "
        "caches, 1.5 s in a second process.",
        ["process", "import torch", "model to device", "first step", "next two steps"],
    )
    size = 8 if quick else 64
    with tempfile.TemporaryDirectory() as caches:
        for name, device in (("tiny, empty caches", "tiny"), ("tiny, second process", "tiny"), ("eager CPU", "cpu")):
            seconds = process(device, size, caches)
            table.add(name, *(f"{s:.2f}" for s in seconds))
            table.figures[name] = seconds
    return table


if __name__ == "__main__":
    run(measure, __doc__)
