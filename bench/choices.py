"""Convolutions and products of many shapes, computed each way there is: as a step of ATen's, as products, as generated
code; and which of them was chosen. Microseconds of processor time, one thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

# A program that one way left on disk would be taken for every other: they are all programs of one trace.
os.environ["TORCH_TINY_CACHE"] = "0"

import torch
from torch.nn import functional as F

from .part import Table, run

# Batch, channels, size → channels, kernel, stride.
CONVOLUTIONS = [
    (1, 1, 128, 1, 3, 1), (8, 1, 28, 8, 3, 1), (1, 3, 64, 8, 3, 1), (8, 3, 32, 16, 3, 1), (1, 16, 64, 1, 3, 1),
    (8, 16, 16, 16, 3, 1), (1, 64, 28, 64, 3, 1), (16, 32, 8, 64, 1, 1), (4, 256, 4, 256, 3, 1),
    (16, 256, 4, 512, 1, 2), (1, 8, 8, 8, 3, 1), (2, 4, 12, 4, 5, 1), (4, 3, 32, 8, 3, 1), (16, 3, 32, 32, 3, 1),
    (2, 3, 64, 16, 3, 1), (1, 3, 128, 16, 3, 1), (8, 2, 32, 8, 3, 1), (8, 16, 16, 32, 1, 1), (1, 64, 14, 64, 1, 1),
    (4, 8, 8, 16, 3, 1), (2, 128, 4, 256, 3, 1), (16, 512, 2, 512, 3, 1), (1, 16, 10, 8, 3, 2),
]  # fmt: skip
# Rows, inner, columns.
PRODUCTS = [
    (1, 16, 16), (8, 8, 8), (32, 32, 64), (32, 64, 4), (1, 256, 256), (256, 256, 1), (16, 16, 16), (24, 24, 24),
    (32, 32, 32), (48, 48, 48), (64, 64, 64), (128, 8, 128), (8, 512, 8), (128, 128, 128), (4, 1024, 64),
    (1, 128, 512), (1, 512, 512), (2, 256, 256),
]  # fmt: skip
# A way is as good as the best within this.
CLOSE = 1.2


@dataclass
class Case:
    name: str
    make: Callable[[], tuple[torch.Tensor, ...]]
    compute: Callable[..., torch.Tensor]
    ways: tuple[str, ...]


def _drawn(*size: int) -> torch.Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(0)) - 0.5


def cases(quick: bool) -> Iterator[Case]:
    for batch, inner, size, outer, kernel, stride in CONVOLUTIONS[: 3 if quick else None]:

        def convolve(x, w, stride=stride, padding=kernel // 2):
            return F.conv2d(x, w, stride=stride, padding=padding).relu()

        sizes = (batch, inner, size, size), (outer, inner, kernel, kernel)
        name = f"conv {batch}, {inner}, {size} → {outer}, {kernel}" + (f" by {stride}" if stride > 1 else "")
        yield Case(name, lambda s=sizes: tuple(_drawn(*z) for z in s), convolve, ("aten", "products", "code"))
    for rows, inner, columns in PRODUCTS[: 3 if quick else None]:
        sizes = (rows, inner), (inner, columns)
        name = f"{rows} x {inner} @ {inner} x {columns}"
        yield Case(name, lambda s=sizes: tuple(_drawn(*z) for z in s), lambda a, b: (a @ b).relu(), ("aten", "code"))


@contextmanager
def forced(way: str) -> Iterator[None]:
    """Programs compiled inside take this way, whatever their sizes; "chosen" is what users get."""
    from torch_tinygrad import _C
    from torch_tinygrad.engine import contractions
    from torch_tinygrad.trace.convolutions import Geometry

    _C.clear_programs()
    if way == "chosen":
        yield
        return

    def prefers_aten(node):
        return way != "code" and node.op in contractions.WORK

    def is_product(self):
        return way == "products"

    with (
        mock.patch.object(contractions, "prefers_aten", prefers_aten),
        mock.patch.object(Geometry, "is_pointwise", False),
        mock.patch.object(Geometry, "has_many_weights", property(is_product)),
    ):
        yield
    _C.clear_programs()


def microseconds(case: Case, way: str, seconds: float) -> float:
    """Of a program of this way, recording included: the fastest of several stretches."""
    inputs = [t.to("tiny") for t in case.make()]
    with forced(way), torch.tiny.compile_mode("always"):

        def once() -> torch.Tensor:
            result = case.compute(*inputs)
            torch.tiny.synchronize()
            return result

        for _ in range(3):
            result = once()
        torch.testing.assert_close(result.cpu(), case.compute(*case.make()), rtol=1e-3, atol=1e-3)
        found, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end or len(found) < 5:
            start = time.process_time()
            for _ in range(10):
                once()
            found.append((time.process_time() - start) / 10)
    return min(found) * 1e6


def measure(quick: bool) -> Table:
    torch.set_num_threads(1)
    table = Table(
        "Choices",
        "What each way takes (µs of processor time with recording, one thread), and what was chosen; * where that is "
        f"more than {CLOSE} of the best.",
        ["computation", "ATen", "products", "code", "chosen", "of the best"],
    )
    close = 0
    all_cases = list(cases(quick))
    for case in all_cases:
        times = {way: microseconds(case, way, 0.05 if quick else 0.3) for way in case.ways}
        chosen = microseconds(case, "chosen", 0.05 if quick else 0.3)
        best = min(times.values())
        close += chosen <= CLOSE * best
        table.figures[case.name] = {**times, "chosen": chosen}
        cells = [f"{times[way]:.1f}" if way in times else "" for way in ("aten", "products", "code")]
        table.add(case.name, *cells, f"{chosen:.1f}", f"{chosen / best:.2f}" + ("" if chosen <= CLOSE * best else " *"))
    table.says += f" Within {CLOSE}: {close} of {len(all_cases)}."
    return table


if __name__ == "__main__":
    run(measure, __doc__)
