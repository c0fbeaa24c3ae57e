"""Traces and clients for tests of the compile service, to be used in processes of their own."""

import os
import time
from pathlib import Path

import torch

from torch_tinygrad.service.client import Client
from torch_tinygrad.trace.nodes import Number, Region, Storage, Trace


def sums(sizes) -> Trace:
    """A kernel for each size: the sum of two vectors."""
    nodes, storages, numbers = [], [], []
    for size in sizes:
        a, b, c = (Region(len(storages) + i, torch.float32, (size,), (1,), 0) for i in range(3))
        nodes.append(("aten::add.Tensor", [a, b, Number(1, len(numbers))], [c], []))
        storages += [Storage(4 * size, has_value, True) for has_value in (True, True, False)]
        numbers.append(1)
    return Trace(nodes, storages, numbers)


def short(size: int = 10) -> Trace:
    return sums([size])


def long() -> Trace:
    """Takes many seconds."""
    return sums(range(3, 2003))


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


class Asked:
    """A client that remembers its answers in order."""

    def __init__(self, **arguments):
        self.answers: list[tuple[int, str, bytes | str]] = []
        self.client = Client(
            lambda k, data: self.answers.append((int.from_bytes(k, "little"), "ready", data)),
            lambda k, reason: self.answers.append((int.from_bytes(k, "little"), "failed", reason)),
            **arguments,
        )

    def ask(self, number: int, trace: Trace) -> None:
        self.client.request(key(number), trace, [], 0)

    def answer(self, number: int, trace: Trace) -> tuple[str, bytes | str]:
        self.ask(number, trace)
        assert self.client.wait(200)
        return self.answers[-1][1:]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until(condition, seconds: float = 100.0):
    """What the condition gives as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)
    return found


def compiling_child(asked: Asked) -> int:
    """The process that was forked for the request at hand: a new helper forks another one first, without bounds."""
    helper = until(asked.client.helper_pid)
    return until(lambda: [child for child in children(helper) if has_bounds(child)])[0]


def has_bounds(pid: int) -> bool:
    try:
        limits = Path(f"/proc/{pid}/limits").read_text()
    except OSError:  # it has ended meanwhile
        return False
    return next(line for line in limits.splitlines() if line.startswith("Max cpu time")).split()[3] != "unlimited"


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
