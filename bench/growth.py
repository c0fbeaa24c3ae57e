"""Time against size, with the exponent fitted: nothing should grow faster than linearly.

Sizes: nodes in a trace (recording it, its first flush, which compiles, and its replay), batch size, and the number of
live tensors while small operations touch few of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from .part import Table, exponent, run


def now() -> float:
    return time.perf_counter()


def loop(n: int) -> tuple[float, float]:
    """Seconds to record a loop of n writes, and to flush it."""
    a = torch.zeros(n, device="tiny")
    b = torch.ones(n, device="tiny")
    torch.tiny.synchronize()
    start = now()
    for i in range(n):
        a[i] = b[i] * 2
    recorded = now()
    torch.tiny.synchronize()
    return recorded - start, now() - recorded


def updates(n: int) -> tuple[float, float]:
    """The same for n in-place operations on one tensor of a set of few: a trace that no loop rolls up."""
    tensors = [torch.zeros(64, device="tiny") for _ in range(7)]
    torch.tiny.synchronize()
    start = now()
    for i in range(n // 2):
        tensors[i % 7].mul_(0.5).add_(tensors[(i * i) % 7])
    recorded = now()
    torch.tiny.synchronize()
    return recorded - start, now() - recorded


def trace_growth(table: Table, name: str, program: Callable[[int], tuple[float, float]], sizes: list[int]) -> None:
    record, compiled, replay = [], [], []
    for n in sizes:
        first = program(n)
        warm = [program(n) for _ in range(3)]
        compiled.append(first[1])
        record.append(statistics.median(w[0] for w in warm))
        replay.append(statistics.median(w[1] for w in warm[1:]))
    for what, times in (("record", record), ("compile", compiled), ("replay", replay)):
        add(table, f"{name}: {what}", sizes, times)


def add(table: Table, name: str, sizes: list[int], times: list[float]) -> None:
    power = exponent(sizes, times)
    table.figures[name] = {"sizes": sizes, "seconds": times, "exponent": power}
    cells = ", ".join(f"{n:,}: {t * 1e3:.3g} ms" for n, t in zip(sizes, times, strict=True))
    table.add(name, cells, f"{power:.2f}")


def batch_growth(sizes: list[int]) -> list[float]:
    """A replayed forward and backward pass of a small network."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 10)).to("tiny")
    times = []
    for n in sizes:
        x = torch.randn(n, 64).to("tiny")

        def step(x=x) -> None:
            model.zero_grad()
            model(x).square().mean().backward()
            torch.tiny.synchronize()

        for _ in range(3):
            step()
        measured = []
        for _ in range(7):
            start = now()
            step()
            measured.append(now() - start)
        times.append(statistics.median(measured))
    return times


def live_growth(sizes: list[int]) -> tuple[list[float], list[float]]:
    """Recording 100 operations on few tensors, and replaying them, with many others alive."""
    record, replay = [], []
    x = torch.ones(64).to("tiny")
    for n in sizes:
        alive = [torch.zeros(4).to("tiny") for _ in range(n)]
        torch.tiny.synchronize()
        recorded, replayed = [], []
        for _ in range(7):
            start = now()
            y = x
            for _ in range(100):
                y = y * 0.5 + x
            between = now()
            torch.tiny.synchronize()
            recorded.append(between - start)
            replayed.append(now() - between)
        record.append(statistics.median(recorded))
        replay.append(statistics.median(replayed[3:]))
        del alive
    return record, replay


def measure(quick: bool) -> Table:
    table = Table(
        "Growth",
        "Time against size, and the power of the size that it grows with: 1 is linear, 0 does not depend on it. "
        "Goals: no power above 1, and 0 for recording against live tensors.",
        ["what", "size: time", "power"],
    )
    sizes = [100, 300, 1000] if quick else [100, 1000, 10_000, 100_000]
    trace_growth(table, "nodes in a loop of writes", loop, [n // 2 for n in sizes])
    trace_growth(table, "nodes in a trace of updates", updates, sizes[:2] if quick else sizes[:3])
    batches = [8, 64, 512] if quick else [8, 64, 512, 4096, 32768]
    add(table, "batch size: replay", batches, batch_growth(batches))
    live = [100, 1000] if quick else [1000, 10_000, 100_000]
    record, replay = live_growth(live)
    add(table, "live tensors: record 200 nodes", live, record)
    add(table, "live tensors: replay them", live, replay)
    return table


if __name__ == "__main__":
    run(measure, __doc__)
