"""Loops of assignments: on `tiny` they become one kernel, and a write costs the same however many there are."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from .part import Table, run

# tinygrad's own assignment grows steeply: 27 s at 1,000.
TINYGRAD_LIMIT = 200


def counting(new, n):
    """a[i] = i, and two views made before"""
    a = new(n)
    v, w = a[1:3], a.reshape(-1, 2)
    for i in range(n):
        a[i] = i
    return a, v, w


def computed(new, n):
    """a[i] = b[i] * 2 + i"""
    a, b = new(n), new(n) + 1
    for i in range(n):
        a[i] = b[i] * 2 + i
    return (a,)


def nested(new, n):
    """m[i, j] = i * j"""
    side = max(2, int(n**0.5))
    m = new(side, side)
    for i in range(side):
        for j in range(side):
            m[i, j] = i * j
    return (m,)


def rows(new, n):
    """m[i] = x * i"""
    m, x = new(n, 8), new(8) + 3
    for i in range(n):
        m[i] = x * i
    return (m,)


def reversed_steps(new, n):
    """a[i] = i, every second, from the end"""
    a = new(n)
    for i in range(n - 2, -1, -2):
        a[i] = i
    return (a,)


def columns(new, n):
    """columns of a permuted matrix"""
    m = new(n, 4).permute(1, 0)
    for i in range(n):
        m[:, i] = i
    return (m,)


def overlapping(new, n):
    """a[i:i+3] = i: the last one wins"""
    a = new(n + 2)
    for i in range(n):
        a[i : i + 3] = i
    return (a,)


def two_tensors(new, n):
    """a[i] = i; b[i] = -i"""
    a, b = new(n), new(n)
    for i in range(n // 2):
        a[i] = i
        b[i] = -i
    return a, b


def added(new, n):
    """a[i] += b[i]"""
    a, b = new(n), new(n) + 2
    for i in range(n):
        a[i] += b[i]
    return (a,)


def from_list(new, n):
    """a[i] = numbers[i]"""
    a, numbers = new(n), [((i * 7919) % 1000) / 8 for i in range(n)]
    for i, number in enumerate(numbers):
        a[i] = number
    return (a,)


def through_views(new, n):
    """in-place updates through views"""
    m = new(64, 16)
    parts = [m[i] for i in range(64)]
    for i in range(n):
        parts[i % 64].mul_(0.5).add_(i % 10)
    return (m,)


def recurrence(new, n):
    """a[i] = a[i - 1] * 0.5 + b[i]"""
    a, b = new(n), new(n) + 1
    for i in range(1, n):
        a[i] = a[i - 1] * 0.5 + b[i]
    return (a,)


LOOPS: tuple[Callable, ...] = (
    counting,
    computed,
    nested,
    rows,
    reversed_steps,
    columns,
    overlapping,
    two_tensors,
    added,
    from_list,
)
# Loops that need not become one kernel, and their lengths.
OTHERS: tuple[tuple[Callable, int], ...] = ((through_views, 1000), (recurrence, 500))


def on(device: str) -> Callable:
    return lambda *shape: torch.zeros(*shape, device=device)


def timed_torch(loop: Callable, n: int, device: str) -> tuple[float, list[torch.Tensor]]:
    start = time.perf_counter()
    results = loop(on(device), n)
    if device == "tiny":
        torch.tiny.synchronize()
    took = time.perf_counter() - start
    return took, [r.cpu() for r in results]


def timed_tinygrad(loop: Callable, n: int) -> tuple[float, list[Any]]:
    from .tinygrad_side import Tensor, finished

    start = time.perf_counter()
    results = loop(lambda *shape: Tensor.zeros(*shape).contiguous(), n)
    finished([r.realize() for r in results])
    return time.perf_counter() - start, [torch.from_numpy(r.numpy()) for r in results]


def row(loop: Callable, n: int) -> list[Any]:
    """One loop at one length on everyone."""
    us = lambda seconds: f"{seconds / n * 1e6:.1f}"  # noqa: E731
    cpu, wanted = timed_torch(loop, n, "cpu")
    cpu = min(cpu, timed_torch(loop, n, "cpu")[0])
    first, got = timed_torch(loop, n, "tiny")
    same = all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True))
    torch.tiny.reset_stats()
    warm = min(timed_torch(loop, n, "tiny")[0] for _ in range(3))
    stats = torch.tiny.stats()
    again, kernels = stats["compiles"], stats["kernels"] // 3
    own = "-"
    if n <= TINYGRAD_LIMIT:
        try:
            took, values = timed_tinygrad(loop, n)
            right = all(torch.equal(a, b) for a, b in zip(wanted[:1], values[:1], strict=True))
            stale = any(not torch.equal(a, b) for a, b in zip(wanted[1:], values[1:], strict=True))
            own = us(took) + ("" if right else " (wrong)") + (" (stale views)" if stale else "")
        except Exception as error:  # what it does not support is a result
            own = type(error).__name__
    return [loop.__doc__, n, us(cpu), us(warm), own, kernels, again, f"{first:.2f}", "yes" if same else "NO"]


def measure(quick: bool) -> Table:
    table = Table(
        "Assignment loops",
        "Microseconds a write, the run included. The first run compiles (`first s`) and the next ones must not "
        "(`compiles again`). Goals: at most 30 µs a write, first run of 10,000 under 2 s. tinygrad's own assignment is "
        f"measured up to n = {TINYGRAD_LIMIT}, its first run, as it compiles each time.",
        ["loop", "n", "eager CPU µs", "tiny µs", "tinygrad µs", "kernels", "compiles again", "first s", "right"],
    )
    timed_torch(counting, 4, "tiny")
    for loop in LOOPS:
        for n in (100, 200) if quick else (100, 1000, 10000):
            table.add(*row(loop, n))
    for loop, n in OTHERS:
        table.add(*row(loop, n // 10 if quick else n))
    return table


if __name__ == "__main__":
    run(measure, __doc__)
