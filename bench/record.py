"""What recording a node costs, against eager CPU PyTorch running the same operator on 64 elements.

Only the recording is timed: what was recorded is dropped before anything runs. The goal is a ratio of at most 3 with
the inference cache warm, and a cost that stays flat from 100 to 100,000 recorded nodes.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import torch

from .part import Table, run

ELEMENTS = 64
CALLS = 400
FOREACH = 8


def operators(device: str) -> dict[str, tuple[Callable[[], object], int]]:
    """Name → one call, and how many nodes' worth of work a call is (8 tensors for foreach are one node)."""
    a, b = torch.randn(ELEMENTS).to(device), torch.randn(ELEMENTS).to(device)
    m, n = torch.randn(8, 8).to(device), torch.randn(8, 8).to(device)
    listed = [torch.randn(ELEMENTS).to(device) for _ in range(FOREACH)]
    others = [torch.randn(ELEMENTS).to(device) for _ in range(FOREACH)]
    if device == "tiny":
        torch.tiny.synchronize()
    return {
        "pointwise: add": lambda: a + b,
        "pointwise: mul by a number": lambda: a * 1.5,
        "pointwise: gelu": lambda: torch.nn.functional.gelu(a),
        "reduction: sum": lambda: a.sum(),
        "reduction: softmax": lambda: m.softmax(-1),
        "matmul": lambda: m @ n,
        "view: slice": lambda: a[3:9],
        "view: transpose": lambda: m.t(),
        "in place: add_": lambda: a.add_(b),
        "in place: a[3] = 2": lambda: a.__setitem__(3, 2.0),
        "foreach: add of 8": lambda: torch._foreach_add(listed, others),
        "foreach: mul_ of 8": lambda: torch._foreach_mul_(listed, 0.999),
    }


def microseconds(call: Callable[[], object], calls: int) -> float:
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    took = time.perf_counter() - start
    gc.enable()
    return took / calls * 1e6


def settle() -> None:
    torch.tiny.synchronize()


def measure(quick: bool) -> Table:
    table = Table(
        "The cost of recording",
        "Microseconds a call on 64 elements, interleaved, medians; `tiny` only records here. Goal: a ratio of at most "
        "3. Below, microseconds a node of `a + b` when that many nodes are recorded before anything runs.",
        ["operator", "eager CPU µs", "tiny µs", "ratio"],
    )
    rounds, calls = (3, 50) if quick else (15, CALLS)
    cpu, tiny = operators("cpu"), operators("tiny")
    for name in cpu:
        times: dict[str, list[float]] = {"cpu": [], "tiny": []}
        for number in range(rounds + 1):
            for device, all_operators in (("cpu", cpu), ("tiny", tiny)):
                took = microseconds(all_operators[name], calls)
                if number:
                    times[device].append(took)
            if name.startswith(("in place", "foreach: mul_")):
                # Writes to living tensors stay pending: fresh tensors, so that nothing has to run them.
                tiny = operators("tiny")
            settle()
        ratio = statistics.median(t / c for t, c in zip(times["tiny"], times["cpu"], strict=True))
        c, t = statistics.median(times["cpu"]), statistics.median(times["tiny"])
        table.add(name, f"{c:.2f}", f"{t:.2f}", f"{ratio:.2f}")
        table.figures[name] = ratio
    for count in (100, 1000) if quick else (100, 1000, 10_000, 100_000):
        per_node = statistics.median(chain_cost(count) for _ in range(3))
        table.add(f"a + b, {count:,} nodes pending", "-", f"{per_node:.2f}", "-")
        table.figures[f"pending {count}"] = per_node
    return table


def chain_cost(count: int) -> float:
    """Microseconds a node of a chain of `count`, dropped unrun."""
    x = torch.zeros(ELEMENTS).to("tiny")
    settle()
    y = x
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    for _ in range(count):
        y = y + x
    took = time.perf_counter() - start
    gc.enable()
    del y
    settle()
    return took / count * 1e6


if __name__ == "__main__":
    run(measure, __doc__)
