"""Measures contenders interleaved in one process, checks that they agree, and says how they compare.

Load on a machine comes and goes: each round runs every contender once, so a ratio is taken within a round, and the
median over rounds is reported.
"""

from __future__ import annotations

import gc
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy
import torch

# A step does one unit of work, waits for it and returns what it computed.
Step = Callable[[], Any]
# Contender → what builds its step. Building is not timed.
Contenders = dict[str, Callable[[], Step]]

EAGER, INDUCTOR, TINYJIT, TINY = "eager CPU", "Inductor", "TinyJit", "tiny"
ORDER = (EAGER, INDUCTOR, TINYJIT, TINY)


@dataclass
class Settings:
    """How long to measure, and whom."""

    repeats: int = 7
    quick: bool = False
    contenders: tuple[str, ...] = ORDER
    # What a contender may take in all its rounds, and what a round of a fast one should take at least.
    budget_seconds: float = 40.0
    # On a loaded machine, processor time of one thread is what repeats.
    clock: Callable[[], float] = time.perf_counter
    round_seconds: float = 0.25


@dataclass
class Workload:
    """A named unit of work. `goals` are the wanted ratios of tiny's time to each other contender's."""

    name: str
    group: str
    build: Callable[[Settings], Contenders]
    tolerance: float
    goals: dict[str, float]


@dataclass
class Result:
    name: str
    group: str
    milliseconds: dict[str, float] = field(default_factory=dict)
    first_ms: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    goals: dict[str, float] = field(default_factory=dict)
    rounds: int = 0
    difference: dict[str, float] = field(default_factory=dict)
    tolerance: float = 0.0
    kernels: int = 0
    errors: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


WORKLOADS: dict[str, Workload] = {}


def workload(name: str, group: str, goals: tuple[float | None, float | None, float | None], tolerance: float = 1e-4):
    """Registers a function from settings to contenders. `goals`: against eager CPU, TinyJit, Inductor."""

    def register(build: Callable[[Settings], Contenders]) -> Callable[[Settings], Contenders]:
        wanted = {who: g for who, g in zip((EAGER, TINYJIT, INDUCTOR), goals, strict=True) if g is not None}
        WORKLOADS[name] = Workload(name, group, build, tolerance, wanted)
        return build

    return register


# ---- comparing results ----


def to_host(value: Any) -> list[numpy.ndarray]:
    """Tensors of any library, numbers, or nested lists of them, as arrays."""
    if isinstance(value, list | tuple):
        return [array for item in value for array in to_host(item)]
    if isinstance(value, torch.Tensor):
        return [value.detach().cpu().double().numpy()]
    if hasattr(value, "numpy"):
        return [numpy.asarray(value.numpy(), dtype=numpy.float64)]
    return [numpy.asarray(value, dtype=numpy.float64)]


def difference(a: Any, b: Any) -> float:
    """The largest distance of two results, relative to the size of the reference `a`."""
    worst = 0.0
    for x, y in zip(to_host(a), to_host(b), strict=True):
        if x.shape != y.shape:
            return float("inf")
        scale = float(numpy.abs(x).max()) if x.size else 1.0
        distance = float(numpy.abs(x - y).max()) if x.size else 0.0
        if not numpy.isfinite(distance):
            return float("inf")
        worst = max(worst, distance / max(scale, 1e-12))
    return worst


# ---- measuring ----


def timed(step: Step, clock: Callable[[], float], calls: int = 1) -> tuple[float, Any]:
    start = clock()
    for _ in range(calls):
        result = step()
    return (clock() - start) / calls, result


WARM_UP = 4


def measure(work: Workload, settings: Settings) -> Result:
    result = Result(work.name, work.group, goals=dict(work.goals), tolerance=work.tolerance)
    steps: dict[str, Step] = {}
    calls: dict[str, int] = {}
    reference = None
    gc.collect()
    builders = work.build(settings)
    for who in ORDER:
        if who not in builders or who not in settings.contenders:
            continue
        try:
            step = builders[who]()
            result.first_ms[who], value = timed(step, settings.clock)
            outcome = [to_host(value)]
            result.first_ms[who] *= 1e3
            warm = float("inf")
            # The same number of calls for everyone: a training step changes its state.
            for _ in range(WARM_UP - 1):
                took, value = timed(step, settings.clock)
                warm = min(warm, took)
                outcome.append(to_host(value))
            calls[who] = max(1, min(1000, int(settings.round_seconds / max(warm, 1e-6))))
            steps[who] = step
            if reference is None:
                reference = outcome
            else:
                result.difference[who] = difference(reference, outcome)
        except Exception as error:  # a contender that fails is a finding, and the others still run
            traceback.print_exc()
            result.errors[who] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    times: dict[str, list[float]] = {who: [] for who in steps}
    spent = dict.fromkeys(steps, 0.0)
    for number in range(settings.repeats):
        order = list(steps)
        for who in order[number % len(order) :] + order[: number % len(order)] if order else []:
            if spent[who] > settings.budget_seconds and len(times[who]) >= 2:
                continue
            start = time.perf_counter()
            steps[who]()  # threads of the last contender come to rest, caches fill
            kernels = torch.tiny.stats()["kernels"] if who == TINY else 0
            took, _ = timed(steps[who], settings.clock, calls[who])
            if who == TINY:
                result.kernels = (torch.tiny.stats()["kernels"] - kernels) // calls[who]
            times[who].append(took)
            spent[who] += time.perf_counter() - start
    result.rounds = max((len(t) for t in times.values()), default=0)
    result.milliseconds = {who: statistics.median(t) * 1e3 for who, t in times.items() if t}
    if times.get(TINY):
        for who, measured in times.items():
            if who != TINY and measured:
                pairs = zip(times[TINY], measured, strict=False)
                result.ratios[who] = statistics.median(mine / theirs for mine, theirs in pairs)
    return result


# ---- building contenders ----


def tiny_step(step: Step) -> Step:
    """The same, and everything pending is run before it returns."""

    def synchronized() -> Any:
        value = step()
        torch.tiny.synchronize()
        return value

    return synchronized


def torch_contenders(make: Callable[[str, bool], Step]) -> Contenders:
    """Contenders from one eager program: `make(device, compiled)` builds it."""

    def inductor() -> Step:
        torch._dynamo.reset()
        return make("cpu", True)

    return {
        EAGER: lambda: make("cpu", False),
        INDUCTOR: inductor,
        TINY: lambda: tiny_step(make("tiny", False)),
    }


def function_contenders(function: Callable, tinygrad_function: Callable, inputs: list[torch.Tensor]) -> Contenders:
    """Contenders for a pure function of tensors, written once for PyTorch and once for tinygrad."""

    def make(device: str, compiled: bool) -> Step:
        moved = [i.to(device) for i in inputs]
        run = torch.compile(function) if compiled else function

        def step() -> torch.Tensor:
            with torch.no_grad():
                return run(*moved)

        return step

    def tinyjit() -> Step:
        from tinygrad import TinyJit

        from .tinygrad_side import finished, tensor

        moved = [tensor(i) for i in inputs]
        run = TinyJit(lambda *args: tinygrad_function(*args).realize())
        return lambda: finished(run(*moved))

    return {**torch_contenders(make), TINYJIT: tinyjit}
