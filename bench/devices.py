"""`DEV=CL python -m bench.devices`: training on a device that is not the CPU, plain eager code on `tiny` against the
same network written for tinygrad under TinyJit on the same device. Each contender has a process and empty caches of its
own: the time that its first four steps take, compiling and all, and then the medians of turns that the two take."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from .harness import TINY, TINYJIT
from .part import Table, run

GOAL = 1.1
NETWORKS = {
    "demo CNN": ("bench.cnn", "demo_training"),
    "GPT": ("bench.gpt", "gpt_training"),
    "LSTM": ("bench.lstm", "lstm_training"),
}
FIRST = 4  # steps: TinyJit has captured its kernels then
TURN = 0.5  # seconds

PROGRAM = """
import importlib, json, sys, time
from bench.harness import Settings
step = getattr(importlib.import_module({module!r}), {build!r})(Settings(quick={quick}))[{who!r}]()
begin = time.perf_counter()
losses = [float(step()) for _ in range({first})]
print(json.dumps([time.perf_counter() - begin, losses]), flush=True)
for line in sys.stdin:
    end, count, begin = time.perf_counter() + float(line), 0, time.perf_counter()
    while time.perf_counter() < end or not count:
        float(step())
        count += 1
    print(json.dumps((time.perf_counter() - begin) / count), flush=True)
"""


class Contender:
    def __init__(self, who: str, network: str, quick: bool, caches: str):
        module, build = NETWORKS[network]
        # What is compared is code that was compiled, so it is compiled at once.
        settings = {"XDG_CACHE_HOME": caches, "POCL_CACHE_DIR": f"{caches}/pocl", "CACHEDB": f"{caches}/tinygrad.db"}
        settings |= {"TORCH_TINY_CACHE": f"{caches}/programs", "TORCH_TINY_COMPILE": "always"}
        code = PROGRAM.format(module=module, build=build, quick=quick, who=who, first=FIRST)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # pocl's compiler prints warnings
            text=True,
        )

    def answer(self) -> Any:
        while line := self.process.stdout.readline():
            if line.startswith(("[", *"0123456789")):
                return json.loads(line)
        raise RuntimeError(f"a contender ended with {self.process.wait()}")

    def turn(self, seconds: float) -> float:
        print(seconds, file=self.process.stdin, flush=True)
        return self.answer()

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measure(quick: bool) -> Table:
    name = os.environ.get("DEV", "CPU")
    table = Table(
        f"Training on {name}, against TinyJit on the same device",
        f"The first {FIRST} steps in s, with empty caches and everything compiled at once; then ms a step. Goal: at "
        f"most {GOAL} of TinyJit's time.",
        ["network", "TinyJit, first steps", "tiny, first steps", "TinyJit, ms", "tiny, ms", "tiny / TinyJit", "losses"],
    )
    for network in NETWORKS:
        with tempfile.TemporaryDirectory() as caches:
            contenders, first = {}, {}
            for who in (TINYJIT, TINY):
                contenders[who] = Contender(who, network, quick, f"{caches}/{who}")
                first[who] = contenders[who].answer()
            rounds = [[contenders[who].turn(TURN) for who in (TINYJIT, TINY)] for _ in range(3 if quick else 9)]
            for contender in contenders.values():
                contender.end()
        ratio = statistics.median(ours / theirs for theirs, ours in rounds)
        theirs, ours = (statistics.median(times) * 1e3 for times in zip(*rounds, strict=True))
        difference = max(abs(a - b) for a, b in zip(first[TINYJIT][1], first[TINY][1], strict=True))
        seconds = (f"{first[who][0]:.1f}" for who in (TINYJIT, TINY))
        table.add(network, *seconds, f"{theirs:.1f}", f"{ours:.1f}", f"{ratio:.2f}", f"differ by {difference:.0e}")
        table.figures[network] = ratio
    return table


if __name__ == "__main__":
    run(measure, __doc__)
