"""`torch.compile` on a small network: steps so small that what PyTorch's own calls take is most of them.

Each contender is a process of its own on one thread; they take turns, and processor time is what is compared.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from .contender import ONE_THREAD
from .harness import EAGER, INDUCTOR
from .part import Table, run

INDUCTOR_STEP, TINY_EAGER = "Inductor, whole step", "tiny, eager"
TINY_MODEL, TINY_STEP = "tiny, model compiled", "tiny, whole step compiled"
CONTENDERS = (EAGER, INDUCTOR, INDUCTOR_STEP, TINY_EAGER, TINY_MODEL, TINY_STEP)
CASES = ("SGD", "AdamW", "inference")
GOAL = 0.6
CALLS = 200


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def step_of(who: str, case: str) -> Callable[[], float]:
    device = "tiny" if who.startswith("tiny") else "cpu"
    model = network().to(device)
    x, y = torch.randn(32, 32).to(device), torch.randint(0, 10, (32,)).to(device)
    model_compiled = who in (INDUCTOR, TINY_MODEL)
    if case == "inference":
        if who != EAGER and who != TINY_EAGER:
            model = torch.compile(model)

        def infer() -> float:
            with torch.no_grad():
                return model(x).sum().item()

        return infer
    if model_compiled:
        model = torch.compile(model)
    optimizer = getattr(torch.optim, case)(model.parameters(), lr=1e-3)

    def train() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step = torch.compile(train) if who in (INDUCTOR_STEP, TINY_STEP) else train
    return lambda: step().item()


def serve(who: str, case: str) -> None:
    """Prints a line when warm, and seconds of processor time of a step for each line it is given."""
    torch.set_num_threads(1)
    step = step_of(who, case)
    for _ in range(30):
        step()
    if who.startswith("tiny"):
        torch.tiny.wait_for_compiles()
    for _ in range(100):
        value = step()
    print("RIGHT", value, flush=True)
    for _ in sys.stdin:
        begin = time.thread_time()
        for _ in range(CALLS):
            step()
        print("TOOK", (time.thread_time() - begin) / CALLS, flush=True)


class Contender:
    def __init__(self, who: str, case: str):
        environment = {**os.environ, **ONE_THREAD}
        if not who.startswith("tiny"):
            environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # our backend has no part in it
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.compiled", "--serve", who, case],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def said(self, word: str) -> float:
        for line in self.process.stdout or ():
            if line.startswith(word):
                return float(line.split()[1])
        raise RuntimeError("a contender ended")

    def round(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.said("TOOK")

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


def measure(quick: bool) -> Table:
    table = Table(
        "torch.compile on a small network",
        "Three layers of width 64 at batch 32 and a loss that is read in each step: microseconds of processor time of the "
        f"calling thread, medians of rounds in turns. Goals: the step with SGD at most {GOAL} of eager's and at most Inductor's.",
        ["case", "contender", "µs a step", "of eager", "result"],
    )
    for case in CASES[:1] if quick else CASES:
        contenders = {who: Contender(who, case) for who in CONTENDERS if case != "inference" or "step" not in who}
        results = {who: contender.said("RIGHT") for who, contender in contenders.items()}
        times: dict[str, list[float]] = {who: [] for who in contenders}
        for _ in range(3 if quick else 11):
            for who, contender in contenders.items():
                times[who].append(contender.round())
        for who, contender in contenders.items():
            contender.stop()
            ratio = statistics.median(a / b for a, b in zip(times[who], times[EAGER], strict=True))
            took = statistics.median(times[who]) * 1e6
            table.add(case, who, f"{took:.0f}", f"{ratio:.2f}", f"{results[who]:.6f}")
            table.figures[f"{case}: {who}"] = ratio
    return table


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        run(measure, __doc__)
