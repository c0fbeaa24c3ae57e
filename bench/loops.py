"""The programs of examples/ at n, 10 n and 100 n steps, and those of loop_programs.py: what compiling them takes, and a
run beside the CPU's."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path

import torch

from . import loop_programs
from .part import Table, run

FOLDER = Path(__file__).resolve().parent.parent / "examples"
# Size, and steps at first; programs whose steps are bounded by their size grow with that instead.
PROGRAMS = {
    "heat": (256, 4), "wave": (256, 4), "gray_scott": (128, 4), "life": (256, 4), "lattice_boltzmann": (64, 2),
    "ising": (128, 2), "kalman": (1000, 4), "multigrid": (65, 1), "quantum": (10, 1),
}  # fmt: skip
GROWING = {"floyd_warshall": 16, "edit_distance": 8, "lu": 8}


def load(name: str) -> Callable[..., torch.Tensor]:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.simulate


def seconds(program: Callable[[], torch.Tensor], times: int = 1) -> float:
    """Of the fastest of some runs."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        program().cpu()
        found.append(time.perf_counter() - start)
    return min(found)


def measured(
    table: Table, name: str, simulate: Callable[..., torch.Tensor], arguments: tuple[int, ...], steps: int
) -> None:
    with torch.tiny.compile_mode("always"):
        before = torch.tiny.stats()["kernels"]
        first = seconds(lambda: simulate("tiny", *arguments))
        kernels = torch.tiny.stats()["kernels"] - before
        again = seconds(lambda: simulate("tiny", *arguments), 3)
    eager = seconds(lambda: simulate("cpu", *arguments), 3)
    figures = {"first": first, "run": again, "eager": eager, "kernels": kernels}
    table.figures[f"{name}, {steps}"] = figures
    cells = (f"{first:.2f} s", f"{again * 1e3:.2f} ms", f"{eager * 1e3:.2f} ms", f"{again / eager:.2f}")
    table.add(name, f"{steps:,}", str(kernels), *cells)


def measure(quick: bool) -> Table:
    table = Table(
        "Loops",
        "Loops whose steps need each other's results, compiled before they first run.",
        ["program", "steps", "kernels", "first run", "run", "CPU", "ratio"],
    )
    for name, (size, steps) in PROGRAMS.items():
        for factor in (1,) if quick else (1, 10, 100):
            measured(table, name, load(name), (size, steps * factor), steps * factor)
    for name, size in GROWING.items():
        for factor in (1,) if quick else (1, 4):
            measured(table, name, load(name), (size * factor,), size * factor)
    for program, sizes in loop_programs.PROGRAMS.items():
        for size, steps in sizes[: 1 if quick else None]:
            measured(table, f"{program.__name__} of {size}", program, (size, steps), steps)
    return table


if __name__ == "__main__":
    run(measure, __doc__)
