"""One program for many sizes against a program of each size's own.

The same step at the same size, in processes that take turns: one compiles that size alone, one has seen two others
before, and one is eager PyTorch's.

    python -m bench.sizes --one-thread     processor time of one thread, which repeats on a machine that others load"""

from __future__ import annotations

import os
import statistics
import sys

from .contender import ONE_THREAD
from .part import Table, run, said

STEP = """
import os, time
os.environ["TORCH_TINY_COMPILE"] = "always"
import torch
from torch import nn
torch.manual_seed(0)
device = {device!r}
if {network!r} == "transformer":
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
    def inputs(n):
        return torch.randn(8, n, 128).to(device)
else:
    blocks = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
              nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
              nn.Linear(4096, 10)]
    model = nn.Sequential(*blocks).to(device)
    def inputs(n):
        return torch.randn(n, 3, 32, 32).to(device)
optimizer = torch.optim.AdamW(model.parameters())
def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
for n in {before}:
    x = inputs(n)
    step(x), step(x)
x = inputs({size})
for _ in range(5):
    step(x)
times = []
for _ in range({repeats}):
    begin = {clock}()
    step(x)
    times.append({clock}() - begin)
times.sort()
compiles = torch.tiny.stats()["compiles"] if device == "tiny" else 0
print("TIMES", times[len(times) // 2], compiles)
"""

# How much longer a flush takes at a size that has not come before than at one that has.
LOOKUP = """
import os, time, statistics
os.environ["TORCH_TINY_COMPILE"] = "always"
import torch
w = torch.randn(64, 64).to("tiny")
def flush(n):
    x = torch.ones(8, n, 64, device="tiny")
    torch.tiny.synchronize()
    y = torch.nn.functional.layer_norm((x @ w).softmax(1), (64,)).sum(1)
    begin = {clock}()
    torch.tiny.synchronize()
    return {clock}() - begin
for n in (40, 57, 41):
    flush(n)
more = []
for n in range(64, 64 + {sizes}):
    first = flush(n)
    more.append(first - statistics.median(flush(n) for _ in range(5)))
print("TIMES", statistics.median(more))
"""

# For each network, sizes to compare at and two others.
NETWORKS = {"transformer": ((31, 48, 64), (40, 57)), "CNN": ((24, 37, 64), (32, 45))}


def measure(quick: bool, one_thread: bool = False) -> Table:
    clock = "time.thread_time" if one_thread else "time.perf_counter"
    environment = {**os.environ, **(ONE_THREAD if one_thread else {})}
    says = "Medians of training steps; the variable program's time over that of the size's own, and over eager's."
    table = Table(
        "Programs for many sizes", says, ["network", "size", "eager ms", "own ms", "variable ms", "/ own", "/ eager"]
    )
    repeats, rounds = (5, 1) if quick else (40, 3)
    for network, (sizes, others) in NETWORKS.items():
        for size in sizes[:1] if quick else sizes:
            ways = {"eager": ("cpu", []), "own": ("tiny", []), "variable": ("tiny", list(others))}
            times: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(rounds):
                for way, (device, before) in ways.items():
                    text = STEP.format(
                        device=device, network=network, before=before, size=size, repeats=repeats, clock=clock
                    )
                    times[way].append(1e3 * float(said(text, "TIMES", environment)[0]))
            eager, own, variable = (statistics.median(times[way]) for way in ways)
            cells = [f"{t:.2f}" for t in (eager, own, variable, variable / own, variable / eager)]
            table.add(network, size, *cells)
            table.figures[f"{network} {size}"] = variable / own
    more = 1e6 * float(said(LOOKUP.format(sizes=20 if quick else 200, clock=clock), "TIMES", environment)[0])
    table.add("lookup of a new size", "", "", "", "", f"+{more:.0f} us", "")
    table.figures["lookup of a new size, us"] = more
    return table


if __name__ == "__main__":
    one_thread = "--one-thread" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--one-thread"]
    run(lambda quick: measure(quick, one_thread), __doc__)
