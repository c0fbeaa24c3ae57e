"""What a workload is, what a result is, and how contenders are compared.

Load on a machine comes and goes: each round runs every contender once, so a ratio is taken within a round, and the
median over rounds is reported.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
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
    # What a contender may take in all its rounds, what a round should take before it is timed and while it is, and how
    # long to wait for the first steps or a round.
    budget_seconds: float = 20.0
    settling_seconds: float = 0.12
    round_seconds: float = 0.25
    patience: float = 600.0
    # On a loaded machine, processor time of one thread is what repeats.
    one_thread: bool = False

    @property
    def clock(self) -> Callable[[], float]:
        return time.process_time if self.one_thread else time.perf_counter


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


def measure(work: Workload, settings: Settings) -> Result:
    from .contender import Contender, Failed

    result = Result(work.name, work.group, goals=dict(work.goals), tolerance=work.tolerance)
    contenders: dict[str, Contender] = {}
    times: dict[str, list[float]] = defaultdict(list)
    spent: dict[str, float] = defaultdict(float)
    names = set(work.build(settings))

    def drop(who: str, reason: Failed) -> None:
        """One that fails is a finding, and the others still run."""
        result.errors[who] = str(reason)
        contenders.pop(who).stop()

    try:
        reference = None
        for who in (w for w in ORDER if w in names and w in settings.contenders):
            contenders[who] = Contender(work, who, settings)
            try:
                result.first_ms[who], outcome = contenders[who].warm_up()
            except Failed as reason:
                drop(who, reason)
                continue
            if reference is None:
                reference = outcome
            else:
                result.difference[who] = difference(reference, outcome)
        for number in range(settings.repeats):
            order = list(contenders)
            first = number % max(len(order), 1)
            for who in order[first:] + order[:first]:
                if len(times[who]) >= 2 and spent[who] > settings.budget_seconds:
                    continue
                start = time.perf_counter()
                try:
                    took, kernels = contenders[who].round()
                except Failed as reason:
                    drop(who, reason)
                    continue
                times[who].append(took)
                spent[who] += time.perf_counter() - start
                result.kernels = kernels or result.kernels
    finally:
        for contender in contenders.values():
            contender.stop()
    result.rounds = max((len(t) for t in times.values()), default=0)
    result.milliseconds = {who: statistics.median(t) * 1e3 for who, t in times.items() if t}
    for who, measured in times.items():
        if who != TINY and measured and times.get(TINY):
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
