"""What a correction is, and the one moment at which all are applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from . import rules


@dataclass(frozen=True)
class Correction:
    """Something of tinygrad's that is wrong for PyTorch's numbers, endless or slow, and the change that mends it."""

    name: str
    why: str  # what goes wrong without it
    tinygrad: str  # the version that it is for
    test: str  # what shows it: `folder/file.py::function` in tests/
    change: Callable[[], None]
    device: str = ""  # the one on which the test shows it, where that is not the host: as `DEV` names it


class TinygradChanged(RuntimeError):
    """What a correction is for is not there."""


ALL: dict[str, Correction] = {}
_applied = False


def correction(tinygrad: str, test: str, device: str = "") -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(change: Callable[[], None]) -> Callable[[], None]:
        name, why = change.__name__.strip("_"), " ".join((change.__doc__ or "").split())
        ALL[name] = Correction(name, why, tinygrad, test, change, device)
        return change

    return register


def wrap(owner: Any, name: str, around: Callable[[Callable], Any]) -> None:
    """Puts `around(plain)` where the plain function is."""
    setattr(owner, name, around(getattr(owner, name)))


def apply() -> None:
    """Before the first value is made. Safe to call more than once."""
    global _applied
    if _applied:
        return
    _applied = True
    for one in ALL.values():
        try:
            one.change()
        except (AttributeError, rules.RuleNotFound) as error:
            raise TinygradChanged(
                f"tinygrad {version('tinygrad')} has not what '{one.name}' corrects in {one.tinygrad}: {error}. "
                f"What went wrong: {one.why} tests/{one.test} shows whether it still does; see docs/tinygrad.md"
            ) from error
    rules.carry_out()
