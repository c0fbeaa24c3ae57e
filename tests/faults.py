"""Faults injected into random programs, and a table of what they cost: nothing.

Programs of views and writes run on the CPU and on the device; between any two steps something fails. Afterwards every
tensor must have the CPU's value. `python -m tests.faults --minutes 60` prints fault, tries, values that were lost (they
cannot be read), wrong (they differ) and unclear (the failure itself was not reported as it should be)."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from tests.errors.test_faults import HUGE, Interrupt

DEVICE = "tiny"


@dataclass
class Program:
    """The same tensors on both devices."""

    choose: random.Random
    cpu: list[torch.Tensor] = field(default_factory=list)
    tiny: list[torch.Tensor] = field(default_factory=list)

    def start(self) -> None:
        for n in range(3):
            values = torch.arange(12.0).reshape(3, 4) + n
            self.add(values, values.to(DEVICE))

    def add(self, cpu: torch.Tensor, tiny: torch.Tensor) -> None:
        self.cpu.append(cpu)
        self.tiny.append(tiny)

    def step(self) -> None:
        """One statement, on both devices."""
        choose, at = self.choose, self.choose.randrange(len(self.cpu))
        other = choose.randrange(3)
        row, number = choose.randrange(3), choose.choice((0.5, 1.0, 2.0, 3.0))
        kind = choose.randrange(6)
        for pool in (self.cpu, self.tiny):
            x, y = pool[at], pool[other]
            if kind == 0:
                x.add_(number)
            elif kind == 1:
                x[row] = number
            elif kind == 2:
                x[row].mul_(number).sub_(y[row - 1])
            elif kind == 3:
                pool.append((x * number - y).clamp(-100, 100))
            elif kind == 4:
                x[:, 1:] = y[:, :-1].clone()
            else:
                pool.append(x.t().contiguous().t() + y.sum(0))
        if len(self.cpu) > 8:
            place = choose.randrange(3, len(self.cpu))
            del self.cpu[place], self.tiny[place]

    def outcome(self) -> tuple[int, int]:
        """How many values are lost, and how many wrong."""
        lost = wrong = 0
        for want, found in zip(self.cpu, self.tiny, strict=True):
            try:
                wrong += not torch.allclose(found.cpu(), want, rtol=1e-4, atol=1e-3, equal_nan=True)
            except RuntimeError:
                lost += 1
        return lost, wrong


def raises(kind: type[BaseException], text: str = "") -> Callable:
    def checked(function: Callable[[Program], None]) -> Callable[[Program], bool]:
        def run(program: Program) -> bool:
            try:
                function(program)
            except kind as error:
                return text in str(error)
            return False

        run.__name__ = function.__name__
        return run

    return checked


@raises(torch.OutOfMemoryError, "memory")
def no_memory(program: Program) -> None:
    torch.ones(HUGE, device=DEVICE).sum().item()


@raises(torch.linalg.LinAlgError)
def a_step_that_refuses_values(program: Program) -> None:
    torch.linalg.eigvalsh(torch.full((3, 3), float("nan"), device=DEVICE) * program.tiny[0][:, :3])


@raises(RuntimeError, "ZeroDivisionError")
def division_by_zero(program: Program) -> None:
    torch.arange(3, device=DEVICE) // (program.tiny[0][:, 0] * 0).long()


@raises(IndexError)
def an_index_beyond(program: Program) -> None:
    program.tiny[0][(program.tiny[1][:, 0] * 0 + 7).long()] = 1.0


@raises(RuntimeError, "must match")
def sizes_that_differ(program: Program) -> None:
    program.tiny[0].add_(torch.ones(7, device=DEVICE))


@raises(RuntimeError, "single memory location")
def a_write_to_an_expanded_tensor(program: Program) -> None:
    program.tiny[0][:1].expand(1000, 4).add_(1)


@raises(RuntimeError, "between 0 and 1")
def values_refused_late(program: Program) -> None:
    torch.nn.functional.binary_cross_entropy(program.tiny[0] * 0 + 2, program.tiny[1] * 0).item()


def an_interrupt(program: Program) -> bool:
    """At any call into Python while what is pending is compiled and run."""
    try:
        with Interrupt(int(1.3 ** program.choose.randrange(1, 40))):
            torch.tiny.synchronize()
    except KeyboardInterrupt:
        pass
    return True


def a_signal(program: Program) -> bool:
    previous = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    signal.setitimer(signal.ITIMER_REAL, program.choose.random() * 0.2)
    try:
        torch.tiny.synchronize()
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    return True


FAULTS = (
    *(no_memory, a_step_that_refuses_values, division_by_zero, an_index_beyond, sizes_that_differ),
    *(a_write_to_an_expanded_tensor, values_refused_late, an_interrupt, a_signal),
)
MODES = ("never", "auto", "always")


@dataclass
class Row:
    tries: int = 0
    lost: int = 0
    wrong: int = 0
    unclear: int = 0


def inject(fault: Callable, mode: str, seed: int, row: Row) -> None:
    program = Program(random.Random(f"{fault.__name__} {mode} {seed}"))
    with torch.tiny.compile_mode(mode):
        program.start()
        for _ in range(3):
            for _ in range(program.choose.randrange(1, 6)):
                program.step()
            row.tries += 1
            row.unclear += not fault(program)
        lost, wrong = program.outcome()
    row.lost += lost
    row.wrong += wrong


def table(rows: dict[str, Row]) -> str:
    lines = [f"{'fault':34} {'tries':>7} {'lost':>5} {'wrong':>6} {'unclear':>8}"]
    for name, row in rows.items():
        lines.append(f"{name.replace('_', ' '):34} {row.tries:7} {row.lost:5} {row.wrong:6} {row.unclear:8}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows = {fault.__name__: Row() for fault in FAULTS}
    end, seed = time.monotonic() + 60 * options.minutes, options.seed
    while time.monotonic() < end:
        for fault in FAULTS:
            for mode in MODES:
                inject(fault, mode, seed, rows[fault.__name__])
        seed += 1
    print(table(rows))
    return int(any(row.lost or row.wrong or row.unclear for row in rows.values()))


if __name__ == "__main__":
    os.environ.setdefault("TORCH_TINY_CACHE", "0")
    sys.exit(main())
