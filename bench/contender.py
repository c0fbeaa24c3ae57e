"""A contender in a process of its own, as its users run it: nobody else's memory, threads or settings around it.

In one process they change each other: what TinyJit and Inductor leave in malloc made eager PyTorch's training of
ResNet-18 about a tenth faster than it is by itself.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from .harness import TINY, WORKLOADS, Settings, Step, Workload, timed, to_host

GROUPS = ("chains", "fused", "matmul", "optimizer", "cnn", "gpt", "lstm")
# For PyTorch, and so for kernels of `tiny`; for tinygrad.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CPU_COUNT": "1", "THREADS": "0"}
WARM_UP = 4


class Failed(Exception):
    """What became of a contender that has no figures."""


def load_groups(groups: tuple[str, ...] = GROUPS) -> None:
    for group in groups:
        importlib.import_module(f"bench.{group}")


class Contender:
    def __init__(self, work: Workload, who: str, settings: Settings):
        self.patience = settings.patience
        self.line, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(work.name, who, settings, theirs)
        )
        before = dict(os.environ)
        os.environ.update(ONE_THREAD if settings.one_thread else {})
        if who != TINY:
            os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # our backend has no part in it
        try:
            self.process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()

    def warm_up(self) -> tuple[float, list]:
        """Milliseconds of the first step, and what the first steps computed."""
        return self._answer()

    def round(self) -> tuple[float, int]:
        """Seconds a step, and kernels."""
        self.line.send("round")
        return self._answer()

    def _answer(self) -> Any:
        if not self.line.poll(self.patience):
            raise Failed(f"no answer in {self.patience:g} s")
        try:
            answer = self.line.recv()
        except EOFError:
            raise Failed("its process ended") from None
        if isinstance(answer, Failed):
            raise answer
        return answer

    def stop(self) -> None:
        self.line.close()
        self.process.join(5)
        self.process.kill()


def serve(name: str, who: str, settings: Settings, line: Connection) -> None:
    """Builds the contender, runs its first steps, then a round whenever it is asked to, until nobody listens."""
    load_groups()
    try:
        gc.collect()
        step = WORKLOADS[name].build(settings)[who]()
        first, value = timed(step, settings.clock)
        outcome, warm = [to_host(value)], float("inf")
        for _ in range(WARM_UP - 1):
            took, value = timed(step, settings.clock)
            warm = min(warm, took)
            outcome.append(to_host(value))
        if who == TINY:
            take_programs_up(step)
        line.send((first * 1e3, outcome))
        calls = max(1, min(1000, int(settings.round_seconds / max(warm, 1e-6))))
        while line.recv():
            line.send(one_round(step, who, calls, settings))
    except EOFError:
        return
    except Exception as error:
        traceback.print_exc()
        message = str(error).splitlines()[0] if str(error) else ""
        line.send(Failed(f"{type(error).__name__}: {message}"[:200]))


def take_programs_up(step: Step) -> None:
    """New traces run directly and are compiled behind: goes on until nothing is compiled any more."""
    import torch

    for _ in range(8):
        torch.tiny.wait_for_compiles()
        before = torch.tiny.stats()["direct"]
        step()
        if torch.tiny.stats()["direct"] == before:
            return


def one_round(step: Step, who: str, calls: int, settings: Settings) -> tuple[float, int]:
    # The last contender's threads come to rest, caches fill, and the processor finds its speed: after a pause, a tenth
    # of a second is up to a fifth slower.
    begin = time.perf_counter()
    while time.perf_counter() < begin + settings.settling_seconds:
        step()
    before = kernels_of(who)
    took, _ = timed(step, settings.clock, calls)
    return took, (kernels_of(who) - before) // calls


def kernels_of(who: str) -> int:
    import torch

    return torch.tiny.stats()["kernels"] if who == TINY else 0
