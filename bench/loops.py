"""The programs of examples/ at n, 10 n and 100 n steps, and those of loop_programs.py: what compiling them takes, a run
beside the CPU's, and the memory both take. Each program has a process of its own.

    python -m bench.loops                  all of them
    python -m bench.loops NAME ...         some
    python -m bench.loops --one-thread     processor time of one thread, which repeats on a machine that others load
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from . import loop_programs
from .part import Table, run

FOLDER = Path(__file__).resolve().parent.parent / "examples"
# Size, and steps at first; programs whose steps are bounded by their size grow with that instead.
EXAMPLES = {
    "heat": (256, 4), "wave": (256, 4), "gray_scott": (128, 4), "life": (256, 4), "lattice_boltzmann": (64, 2),
    "ising": (128, 2), "kalman": (1000, 4), "multigrid": (65, 1), "quantum": (10, 1),
}  # fmt: skip
GROWING = {"floyd_warshall": (16, 64, 256), "edit_distance": (8, 32, 128), "lu": (8, 32, 128)}
# A run takes at least so many seconds together with the runs it is the fastest of.
TOGETHER = 0.2
# Seconds for all runs of a program.
PATIENCE = 600


@dataclass(frozen=True)
class Program:
    simulate: Callable[..., torch.Tensor]
    runs: list[tuple[int, int]]  # size and steps of each


def example(name: str) -> Callable[..., torch.Tensor]:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.simulate


def programs() -> dict[str, Program]:
    found = {
        f"example {name}": Program(example(name), [(size, steps * factor) for factor in (1, 10, 100)])
        for name, (size, steps) in EXAMPLES.items()
    }
    found |= {
        f"example {name}": Program(example(name), [(size, size) for size in sizes]) for name, sizes in GROWING.items()
    }
    return found | {program.__name__: Program(program, runs) for program, runs in loop_programs.PROGRAMS.items()}


def once(program: Callable[[], torch.Tensor]) -> float:
    clock = time.perf_counter if torch.get_num_threads() > 1 else time.process_time
    start = clock()
    program().cpu()
    return clock() - start


def side_by_side(ours: Callable[[], torch.Tensor], theirs: Callable[[], torch.Tensor]) -> tuple[float, float]:
    """The fastest run of each, taken in turn: what else runs on the machine slows down both."""
    found: list[tuple[float, float]] = []
    while len(found) < 3 or (len(found) < 40 and sum(map(sum, found)) < TOGETHER):
        found.append((once(ours), once(theirs)))
    return min(a for a, _ in found), min(b for _, b in found)


def peak_on_cpu(program: Callable[[], torch.Tensor]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as found:
        kept = program()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        found.export_chrome_trace(file.name)
        events = [e["args"] for e in json.loads(Path(file.name).read_text())["traceEvents"] if e["name"] == "[memory]"]
    first = events[0]["Total Allocated"] - events[0]["Bytes"]
    del kept
    return max(e["Total Allocated"] for e in events) - first


def peak_on_tiny(program: Callable[[], torch.Tensor]) -> int:
    torch.tiny.synchronize()
    torch.tiny.reset_peak_memory_stats()
    before = torch.tiny.memory_allocated()
    kept = program()
    torch.tiny.synchronize()
    del kept
    return torch.tiny.max_memory_allocated() - before


def figures_of(simulate: Callable[..., torch.Tensor], size: int, steps: int) -> dict[str, float]:
    def ours() -> torch.Tensor:
        return simulate("tiny", size, steps)

    def theirs() -> torch.Tensor:
        return simulate("cpu", size, steps)

    before = torch.tiny.stats()
    first = once(ours)
    after = torch.tiny.stats()
    torch.testing.assert_close(ours().cpu(), theirs(), rtol=1e-3, atol=1e-3)
    run, eager = side_by_side(ours, theirs)
    found = {"size": size, "steps": steps, "first": first, "run": run, "eager": eager}
    found |= {count: after[count] - before[count] for count in ("compiles", "kernels")}
    if eager < 1:  # the profiler keeps every event
        found["memory"] = peak_on_tiny(ours) / max(1, peak_on_cpu(theirs))
    return found


def alone(name: str, quick: bool, one_thread: bool) -> None:
    """What the process of a program does: a line of figures for each of its runs."""
    if one_thread:
        torch.set_num_threads(1)
    program = programs()[name]
    with torch.tiny.compile_mode("always"):
        for size, steps in program.runs[: 1 if quick else None]:
            print("FIGURES", json.dumps(figures_of(program.simulate, size, steps)), flush=True)


def measured(name: str, quick: bool, one_thread: bool) -> tuple[list[dict[str, float]], str]:
    """What the runs of a program took, and what ended them before the last one."""
    command = [sys.executable, "-c", f"from bench.loops import alone; alone({name!r}, {quick}, {one_thread})"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        out, failure = done.stdout, done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
    except subprocess.TimeoutExpired as late:
        out, failure = (late.stdout or b"").decode(), f"more than {PATIENCE} s"
    return [json.loads(line.partition(" ")[2]) for line in out.splitlines() if line.startswith("FIGURES")], failure


def measure(quick: bool, names: list[str] | None = None, one_thread: bool = False) -> Table:
    table = Table(
        "Loops",
        "Loops whose steps need each other's results, compiled before they first run; the sizes of a program in "
        "turn, in one process. Memory is the most that is allocated at once, of eager's.",
        ["program", "size", "steps", "compiles", "kernels a step", "first run", "run", "CPU", "ratio", "memory"],
    )
    for name in names or programs():
        rows, failure = measured(name, quick, one_thread)
        for row in rows:
            table.figures[f"{name}, {row['size']}, {row['steps']}"] = row
            times = f"{row['first']:.2f} s", f"{row['run'] * 1e3:.2f} ms", f"{row['eager'] * 1e3:.2f} ms"
            ratios = f"{row['run'] / row['eager']:.2f}", f"{row['memory']:.2f}" if "memory" in row else ""
            counts = str(row["compiles"]), f"{row['kernels'] / row['steps']:.1f}"
            table.add(name, f"{row['size']:,}", f"{row['steps']:,}", *counts, *times, *ratios)
        if failure:
            table.add(name, "", "", "", "", failure, "", "", "", "")
    return table


if __name__ == "__main__":
    # Names of programs, and how to measure, may stand before the options that all parts have.
    chosen = [argument for argument in sys.argv[1:] if argument in programs()]
    one_thread = "--one-thread" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument not in (*chosen, "--one-thread")]
    run(lambda quick: measure(quick, chosen, one_thread), __doc__)
