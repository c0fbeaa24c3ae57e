"""The trace as the compiler sees it: what was computed, from which regions of which storages, into which.

Nothing here knows tinygrad. Every operator form (functional, in-place, `out=`, foreach) has been reduced to one thing:
compute a functional operator, then write each result into a region.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Region:
    """A strided part of a storage: exactly a PyTorch tensor's geometry. Offset and strides count elements of `dtype`.
    Strides may be negative only in batched nodes that `reroll` makes.

    A region that `moves` lies elsewhere at every flush: `offset` is where it was when the trace was compiled, and the
    flush's table of numbers has, at position `moves`, the bytes it is away from there. Regions of one storage with the
    same position keep their distance; about any others of that storage nothing is known."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    moves: int = -1

    @property
    def numel(self) -> int:
        n = 1
        for s in self.size:
            n *= s
        return n

    def at(self, **changes) -> Region:
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Lifted:
    """A number that is an input of the program, not a constant: entries of the flush's table of numbers at
    `position + i * step` (for i in range(count), reshaped to `size`), or a single 0-dim one where `size` is ()."""

    position: int
    is_float: bool
    size: tuple[int, ...] = ()
    step: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Number:
    """A Python number among a node's arguments, with its position in the flush's table of numbers: passes that find
    it varying may turn it into a `Lifted`. `position` is -1 for a number that must stay constant."""

    value: bool | int | float | complex
    position: int = -1


@dataclass(slots=True)
class Node:
    """`op` is the functional operator's name, as in `aten::add.Tensor`. `args` are in schema order and hold Region
    (a tensor read), Number, Lifted, plain Python values, None, or lists of these. `outs` says where results go."""

    op: str
    args: tuple[Any, ...]
    outs: tuple[Region | None, ...]
    origin: int = -1  # the recorded node it comes from, where that is one
    inferred: tuple[Region | None, ...] = ()  # all results as recorded, where some of them are no longer needed


@dataclass(slots=True)
class Storage:
    """`has_value`: a buffer holds its bytes before the trace runs. `live`: somebody can still see it afterwards.
    `any_size`: a program that takes parts of it alone serves storages of other sizes too."""

    nbytes: int
    has_value: bool
    live: bool
    any_size: bool = False


@dataclass(slots=True)
class Trace:
    nodes: list[Node]
    storages: list[Storage]
    numbers: list[bool | int | float] = field(default_factory=list)


def plain(argument: Any) -> Any:
    """An argument, or the list of them, with numbers as Python's."""
    if isinstance(argument, (list, tuple)):
        return [plain(a) for a in argument]
    return argument.value if isinstance(argument, Number) else argument


def reads(node: Node):
    """Every region a node reads, in argument order."""
    stack = list(reversed(node.args))
    while stack:
        arg = stack.pop()
        if isinstance(arg, Region):
            yield arg
        elif isinstance(arg, (list, tuple)):
            stack.extend(reversed(arg))
