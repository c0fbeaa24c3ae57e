"""Finds a clang for tinygrad's CPU device: `CC` if it is one, on PATH, or in the `ziglang` wheel. It may come and go at
any time."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import time
import warnings
from pathlib import Path

REMEDIES = (
    "Install one of: clang itself, so that it is on PATH (for example `apt install clang`), or the wheel that has it "
    "(`pip install ziglang`)."
)
_PAUSE = 2.0  # seconds between two searches in vain


class NoClang(OSError):
    """There is none. It may be there the next time."""

    def __init__(self) -> None:
        super().__init__(f"the CPU device of tinygrad needs clang, and none was found. {REMEDIES}")


class NoCompilerWarning(UserWarning):
    """Programs are not compiled, for want of a compiler."""


_searched = float("-inf")
_warned = False
_given: list[str] | None = None
_known: set[tuple[str, ...]] = set()  # values of CC that are a clang


def use(command: list[str] | None) -> None:
    """In a process that compiles for another: with the compiler that was found there."""
    global _given
    _given = command


def _is_clang(line: list[str]) -> bool:
    """By its own word: `CC` is there for everything that is built in this environment, and is as often gcc."""
    if tuple(line) not in _known:
        try:
            said = subprocess.run([*line, "--version"], capture_output=True, text=True, timeout=10).stdout
        except (OSError, subprocess.TimeoutExpired):
            return False
        if "clang" not in said:
            return False
        _known.add(tuple(line))
    return True


def _find() -> list[str] | None:
    chosen = shlex.split(os.environ.get("CC", ""))
    if chosen and shutil.which(chosen[0]) and _is_clang(chosen):
        return chosen
    if found := shutil.which("clang"):
        return [found]
    try:
        wheel = importlib.util.find_spec("ziglang")
    except ValueError:  # somebody made it unfindable
        return None
    zig = Path(wheel.origin).parent / "zig" if wheel is not None and wheel.origin is not None else None
    return [str(zig), "clang"] if zig is not None and os.access(zig, os.X_OK) else None


def command() -> list[str] | None:
    """How to run it, as the beginning of a command line; nothing where there is none."""
    global _searched
    if _given is not None:
        return _given
    if time.monotonic() < _searched + _PAUSE:
        return None
    found = _find()
    if found is None:
        importlib.invalidate_caches()  # a wheel may be installed meanwhile
        _searched = time.monotonic()
    return found


def available() -> bool:
    return command() is not None


def warn_once() -> None:
    """Says that nothing is compiled for want of a compiler, and what to do about it."""
    global _warned
    if not _warned:
        _warned = True
        text = f"tiny: found no clang, so that programs are not compiled and run operator by operator. {REMEDIES}"
        warnings.warn(text, NoCompilerWarning, stacklevel=2)


def _compile(self, src: str) -> bytes:
    """As tinygrad's own, with the compiler found here: tinygrad asks the environment, which is not ours alone."""
    found = command()
    if found is None:
        warn_once()
        raise NoClang
    flags = "-c -x c -O2 -fPIC -ffreestanding -fno-math-errno -nostdlib -fno-ident".split()
    line = [*found, *flags, f"--target={self.arch}-none-unknown-elf", *self.args, "-", "-o", "-"]
    return subprocess.check_output(line, input=src.encode())


def provide() -> None:
    """Makes tinygrad compile with it."""
    from tinygrad.runtime.support.compiler_cpu import ClangCompiler

    ClangCompiler.compile = _compile
