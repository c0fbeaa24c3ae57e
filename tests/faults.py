"""Faults injected into random programs, and a table of what they cost: nothing.

Programs of the fuzzer's grammar run on the CPU and on the device; between any two of their lines something fails.
Afterwards every tensor must have the CPU's geometry and value. `python -m tests.faults --minutes 60` prints fault,
tries, values that were lost (they cannot be read), wrong (they differ) and unclear (the failure itself was not reported
as it should be), and each program that lost something."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.errors.test_faults import HUGE, Interrupt

DEVICE = "tiny"
MODES = ("never", "auto", "always", "mixed")


class Program:
    """A random program that runs on both devices, line by line."""

    def __init__(self, seed: str):
        from tests.grammar import KINDS, RandomChoice
        from tests.programs import Pair

        self.choose, self.pair, self.of_grammar = random.Random(seed), Pair(), RandomChoice(0)
        self.of_grammar.random = self.choose
        self.kinds = [kind for kind, (_, weight) in KINDS.items() for _ in range(weight)]

    def lines(self, count: int) -> None:
        from tests.grammar import step

        for _ in range(count):
            step(self.pair, self.of_grammar, self.choose.choice(self.kinds))

    def zero(self) -> torch.Tensor:
        """A zero that is computed from one of the program's tensors, so that what is pending is needed for it."""
        names = self.pair.live()
        if not names:
            return torch.zeros((), device=DEVICE)
        t = self.pair.tiny[self.choose.choice(names)]
        return (t != t).any().float() * 0

    def outcome(self) -> tuple[int, int]:
        """How many values are lost, and how many wrong."""
        from tests.programs import flat_storage

        lost = wrong = 0
        for name in self.pair.live():
            try:
                found = flat_storage(self.pair.tiny[name]).cpu()
            except RuntimeError:
                lost += 1
                continue
            try:
                torch.testing.assert_close(found, flat_storage(self.pair.cpu[name]), equal_nan=True)
            except AssertionError:
                wrong += 1
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
    (torch.ones(HUGE, device=DEVICE) + program.zero()).sum().item()


@raises(torch.linalg.LinAlgError)
def a_step_that_refuses_values(program: Program) -> None:
    torch.linalg.eigvalsh(torch.full((3, 3), float("nan"), device=DEVICE) + program.zero())


@raises(RuntimeError, "ZeroDivisionError")
def division_by_zero(program: Program) -> None:
    torch.arange(3, device=DEVICE) // program.zero().long()


@raises(IndexError)
def an_index_beyond(program: Program) -> None:
    torch.zeros(3, device=DEVICE)[program.zero().long() + 7] = 1.0


@raises(RuntimeError, "must match")
def sizes_that_differ(program: Program) -> None:
    torch.zeros(3, device=DEVICE).add_(program.zero().expand(7))


@raises(RuntimeError, "single memory location")
def a_write_to_an_expanded_tensor(program: Program) -> None:
    program.zero().expand(1000, 4).add_(1)


@raises(RuntimeError, "between 0 and 1")
def values_refused_late(program: Program) -> None:
    zero = program.zero().expand(3)
    torch.nn.functional.binary_cross_entropy(zero + 2, zero).item()


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
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, program.choose.random() * 0.2)
            torch.tiny.synchronize()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGALRM, previous)
    return True


def children(pid: int) -> list[int]:
    try:
        return [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:  # it has ended meanwhile
        return []


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


@contextmanager
def killing(found: Callable[[], list[int]]) -> Iterator[None]:
    """Kills whatever is found, again and again, while the block runs."""
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.002):
            for pid in found():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def helper() -> list[int]:
    """The process that compiles for this one, while there is one."""
    from torch_tinygrad.service import requests

    pid = requests._client.helper_pid() if requests._client is not None else None
    return [] if pid is None else [pid]


def compilers() -> list[int]:
    """C compilers that this process has started, and the processes that compile beside it."""
    words = {"-ffreestanding", "--multiprocessing-fork"}
    return [pid for pid in children(os.getpid()) if words & set(command_line(pid))]


def a_killed_compiler(program: Program) -> bool:
    with killing(compilers):
        torch.tiny.synchronize()
    return True


def a_killed_compile(program: Program) -> bool:
    """In the helper process, of steps that came often enough to be asked for; seldom that process itself."""
    size = program.choose.randrange(2, 1 << 20)
    x, want = torch.zeros(size, device=DEVICE), torch.zeros(size)
    victims = helper if program.choose.random() < 0.1 else lambda: [c for pid in helper() for c in children(pid)]
    with torch.tiny.compile_mode("auto"), killing(victims):
        for n in range(8):
            for t in (x, want):
                t.add_(1).mul_(2)[::3].sub_(t[-1] % 5)
            torch.tiny.synchronize()
            if n > 4:
                time.sleep(0.02)
    return torch.equal(x.cpu(), want)


FAULTS = (
    *(no_memory, a_step_that_refuses_values, division_by_zero, an_index_beyond, sizes_that_differ),
    *(a_write_to_an_expanded_tensor, values_refused_late, an_interrupt, a_signal, a_killed_compiler, a_killed_compile),
)


@dataclass
class Row:
    tries: int = 0
    lost: int = 0
    wrong: int = 0
    unclear: int = 0

    @property
    def clean(self) -> bool:
        return not (self.lost or self.wrong or self.unclear)


def inject(fault: Callable, mode: str, seed: int, row: Row) -> list[str]:
    """A program with the fault in between its lines, which are returned."""
    before, os.environ["TORCH_TINY_COMPILE"] = os.environ.get("TORCH_TINY_COMPILE", "auto"), mode
    program = Program(f"{fault.__name__} {mode} {seed}")
    try:
        for _ in range(3):
            program.lines(program.choose.randrange(1, 8))
            row.tries += 1
            row.unclear += not fault(program)
            program.pair.lines.append(f"# {fault.__name__}")
        lost, wrong = program.outcome()
    except AssertionError as error:  # another result, or other geometry
        program.pair.lines.append(f"# {error}")
        lost, wrong = 0, 1
    finally:
        os.environ["TORCH_TINY_COMPILE"] = before
        torch.tiny.compile_mode(before)
    row.lost += lost
    row.wrong += wrong
    return program.pair.lines


def table(rows: dict[str, Row]) -> str:
    lines = [f"{'fault':34} {'tries':>7} {'lost':>5} {'wrong':>6} {'unclear':>8}"]
    for name, row in rows.items():
        lines.append(f"{name.replace('_', ' '):34} {row.tries:7} {row.lost:5} {row.wrong:6} {row.unclear:8}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", choices=[fault.__name__ for fault in FAULTS], nargs="*")
    options = parser.parse_args()
    faults = [f for f in FAULTS if not options.fault or f.__name__ in options.fault]
    rows = {fault.__name__: Row() for fault in faults}
    start = shown = time.monotonic()
    seed = options.seed
    while time.monotonic() < start + 60 * options.minutes:
        for fault in faults:
            for mode in MODES:
                row = Row()
                lines = inject(fault, mode, seed, row)
                total = rows[fault.__name__]
                for name in vars(row):
                    setattr(total, name, getattr(total, name) + getattr(row, name))
                if not row.clean:
                    print(f"seed {seed}, {mode}: {row}", *lines, sep="\n    ", flush=True)
        seed += 1
        if time.monotonic() > shown + 300:
            shown = time.monotonic()
            print(f"after {(shown - start) / 60:.0f} minutes:\n{table(rows)}", flush=True)
    print(table(rows))
    return int(not all(row.clean for row in rows.values()))


if __name__ == "__main__":
    os.environ.setdefault("TORCH_TINY_CACHE", "0")
    sys.exit(main())
