"""Choices that depend on how large things are, made once for all members of a family of traces.

A program for many sizes is compiled from a few members (engine/sizes.py), which must come out alike. Whoever chooses by
size asks `decide` for its answer: for the first member that is its own, for the others what was chosen for the first.
`note_apart` takes down claims that hold for a member but might not for others in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class Diverged(Exception):
    """A member's compile went another way than the first one's."""


class Decisions:
    """What was decided in compiling one member, in the order of asking; and, for further ones, what to answer."""

    def __init__(self, first: Decisions | None = None, plain_loops: bool = False, most_cuts: int = 99):
        self.plain_loops, self.most_cuts = plain_loops, most_cuts
        self.made: list[tuple[str, Any]] = []
        self.apart: list[tuple[int, tuple]] = []
        self.notes: dict[str, Any] = {}
        self._answers: Iterator[tuple[str, Any]] | None = None if first is None else iter(first.made)

    def decide(self, what: str, answer: Any) -> Any:
        if self._answers is not None:
            asked, given = next(self._answers, ("nothing", None))
            if asked != what:
                raise Diverged(f"{what} was asked where {asked} had been")
            answer = given
        self.made.append((what, answer))
        return answer

    def is_done(self) -> bool:
        return self._answers is None or next(self._answers, None) is None


_current: Decisions | None = None


@contextmanager
def deciding(decisions: Decisions) -> Iterator[Decisions]:
    global _current
    before, _current = _current, decisions
    try:
        yield decisions
    finally:
        _current = before


def is_for_one_size() -> bool:
    return _current is None


def decide(what: str, answer: T) -> T:
    """`answer`, unless this is a further member of a family."""
    return answer if _current is None else _current.decide(what, answer)


def is_one_of_many() -> bool:
    """Whether what is compiled stands for other sizes too."""
    return _current is not None


def wants_plain_loops() -> bool:
    """Whether loops are to be left whole: cut, they differed between members."""
    return _current is not None and _current.plain_loops


def most_cuts() -> int:
    """How many cuts of loops to make at most: further ones cannot be made at every size."""
    return _current.most_cuts if _current is not None else 99


def note(what: str, value: Any) -> None:
    """Leaves word of what a member's compile came upon."""
    if _current is not None:
        _current.notes[what] = value


def note_apart(target: int, terms: tuple) -> None:
    """Notes that no sum of `terms` is `target` (trace/geometry.py, `reachable`)."""
    if _current is not None:
        _current.apart.append((target, terms))
