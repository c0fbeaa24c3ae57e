"""Programs as lines of Python, run side by side on both devices, and made shorter while they fail.

`grammar.py` says which lines a random program has.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from tests.differential import DEVICE, assert_same_error, compare_metadata, data, flush, raised_by

# -------------------------------------------------------------------------------------------------------- both sides


class Pair:
    """One program running on both devices, line by line. Raises AssertionError where they differ."""

    def __init__(self, compare_each: bool = False):
        torch.tiny.compile_mode(os.environ["TORCH_TINY_COMPILE"])  # "mixed" draws the same for the same program
        shared = {"torch": torch, "data": data}
        self.cpu = {**shared, "device": "cpu", "flush": lambda: None}
        self.tiny = {**shared, "device": DEVICE, "flush": flush}
        self.lines: list[str] = []
        self.compare_each = compare_each
        self.made = 0

    def live(self) -> list[str]:
        return [name for name, value in self.cpu.items() if isinstance(value, torch.Tensor)]

    def new_name(self) -> str:
        self.made += 1
        return f"t{self.made}"

    def run(self, line: str) -> None:
        """Runs a line on both sides; exceptions, results and metadata of every live tensor must agree."""
        self.lines.append(line)
        code = compile(line, "<program>", "exec")
        errors = [raised_by(lambda: exec(code, self.cpu)), raised_by(lambda: exec(code, self.tiny))]
        assert_same_error(*errors, line)
        self.compare_metadata(line)
        if line.startswith("read") and errors[0] is None:
            torch.testing.assert_close(self.tiny["read"], self.cpu["read"], equal_nan=True)
        if self.compare_each or line == "flush()":
            self.compare_values()

    def compare_metadata(self, line: str) -> None:
        names = self.live()
        here = [name for name, value in self.tiny.items() if isinstance(value, torch.Tensor)]
        assert names == here, f"{line}: live are {names} and {here}"
        compare_metadata(names, [self.cpu[n] for n in names], [self.tiny[n] for n in names], line)

    def compare_values(self) -> None:
        """Compares whole storages: geometry is known to agree, and a flat read needs no kernel of its own."""
        seen = set()
        for name in self.live():
            c, t = self.cpu[name], self.tiny[name]
            if c.untyped_storage()._cdata in seen:
                continue
            seen.add(c.untyped_storage()._cdata)
            try:
                flat = [flat_storage(x).cpu() for x in (t, c)]
            except Exception as error:
                raise AssertionError(f"storage of {name} cannot be read: {type(error).__name__}: {error}") from error
            torch.testing.assert_close(*flat, equal_nan=True, msg=lambda m, name=name: f"storage of {name}: {m}")


class Blind(Pair):
    """Where the device computes nothing: what it does is recorded and compiled, and not compared."""

    def run(self, line: str) -> None:
        self.lines.append(line)
        code = compile(line, "<program>", "exec")
        if raised_by(lambda: exec(code, self.cpu)) is None:
            exec(code, self.tiny)

    def compare_values(self) -> None:
        flush()


def flat_storage(t: torch.Tensor) -> torch.Tensor:
    """All of a tensor's storage as a vector of its dtype."""
    storage = t.untyped_storage()
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(
        storage, 0, (storage.nbytes() // t.element_size(),), (1,)
    )


def replay(program: str, compare_each: bool = False) -> Pair:
    """Runs a program given as text: how a reproducer is written down as a test."""
    pair = Pair(compare_each)
    for line in filter(None, map(str.strip, program.splitlines())):
        pair.run(line)
    pair.compare_values()
    return pair


def fails(lines: list[str]) -> str | None:
    """How a program fails, or None. Lines that use a name no line made raise alike on both sides."""
    try:
        replay("\n".join(lines))
    except AssertionError as error:
        return str(error)
    return None


def minimal(lines: list[str], still_fails: Callable[[list[str]], str | None] = fails, tries: int = 200) -> list[str]:
    """Drops lines, in halving chunks, while the program still fails."""
    chunk = max(len(lines) // 2, 1)
    while chunk:
        position = 0
        while position < len(lines) and tries > 0:
            tries -= 1
            shorter = lines[:position] + lines[position + chunk :]
            if shorter and still_fails(shorter):
                lines = shorter
            else:
                position += chunk
        chunk //= 2
    return lines


class Different(AssertionError):
    """The devices disagree; carries the program."""

    def __init__(self, lines: list[str], message: str):
        super().__init__(message)
        self.lines = lines
