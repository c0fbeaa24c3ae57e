"""The demo CNN's training step on `tiny` against the same network under TinyJit, and the time spent outside kernels."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time

from .harness import EAGER, TINY, TINYJIT, Settings
from .part import Table, run

GOAL_RATIO, GOAL_OUTSIDE_MS = 1.10, 10.0


def outside_kernels(quick: bool) -> tuple[float, float]:
    """Median milliseconds of a step, and of that what the runner does not account for: recording, lookup, Python.

    TORCH_TINY_DEBUG=1 prints the run time of each flush; a process of its own reads it."""
    program = f"""
import time, sys
from bench.cnn import demo_training
from bench.harness import TINY, Settings
step = demo_training(Settings(quick={quick}))[TINY]()
for _ in range(5): step()
for _ in range(10):
    sys.stderr.flush()
    start = time.perf_counter(); step(); took = time.perf_counter() - start
    print(f"STEP {{took * 1e3}}", file=sys.stderr, flush=True)
"""
    environment = {**os.environ, "TORCH_TINY_DEBUG": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    steps, pending = [], 0.0
    for line in done.stderr.splitlines():
        if found := re.search(r"run ([\d.]+) ms", line):
            pending += float(found[1])
        elif line.startswith("STEP "):
            whole = float(line.split()[1])
            steps.append((whole, whole - pending))
            pending = 0.0
    if len(steps) < 3:
        raise RuntimeError(f"the step did not run: {done.stderr[-500:]}")
    steps = steps[1:]  # the first carries the warm-up's flushes
    return statistics.median(s[0] for s in steps), statistics.median(s[1] for s in steps)


def measure(quick: bool) -> Table:
    from .cnn import demo_training

    table = Table(
        "A training step of the demo CNN",
        f"Interleaved in one process, medians. Goals: at most {GOAL_RATIO} of TinyJit's time, and under "
        f"{GOAL_OUTSIDE_MS:g} ms of it outside kernels (recording, lookup, Python).",
        ["contender", "ms a step", "tiny's time over it"],
    )
    builders = demo_training(Settings(quick=quick))
    steps = {who: builders[who]() for who in (EAGER, TINYJIT, TINY)}
    for step in steps.values():
        for _ in range(4):
            step()
    times: dict[str, list[float]] = {who: [] for who in steps}
    for _ in range(3 if quick else 9):
        for who, step in steps.items():
            step()
            start = time.perf_counter()
            step()
            times[who].append(time.perf_counter() - start)
    for who, measured in times.items():
        ratio = statistics.median(a / b for a, b in zip(times[TINY], measured, strict=True))
        table.add(who, f"{statistics.median(measured) * 1e3:.1f}", f"{ratio:.2f}")
        table.figures[who] = ratio
    whole, outside = outside_kernels(quick)
    table.add("tiny, outside kernels", f"{outside:.2f} of {whole:.1f}", "-")
    table.figures["outside kernels ms"] = outside
    return table


if __name__ == "__main__":
    run(measure, __doc__)
