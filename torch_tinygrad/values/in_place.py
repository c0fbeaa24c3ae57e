"""Versions of a buffer that is written in place during a trace.

Each version has a name of its own, an alias of the buffer that its writer and its readers use: tinygrad sees no hazard
in it, and the order (whoever reads an earlier version runs before the writer of the next) is made by the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinygrad import Tensor
from tinygrad.uop.ops import GroupOp, Ops, UOp

from ..kernels.threads import unshaped


@dataclass
class Version:
    """One name of the buffer, and what it holds by now."""

    name: UOp
    state: UOp


class Versions:
    """`taken` are the names of all buffers that storages had before the trace."""

    def __init__(self, buffer: UOp, taken: set[UOp]):
        self.buffer, self.state, self.taken = buffer, buffer, taken
        self.names = [buffer]
        taken.add(buffer)
        self.states: list[UOp] = []  # of each version but the first, everything stored

    @staticmethod
    def holding(value: UOp, taken: set[UOp]) -> Versions:
        """Of a buffer that the storage did not have before the trace, with a value in it."""
        versions = Versions(UOp.new_buffer(value.device, value.shape[0], value.dtype), taken)
        version = versions.begin()
        version.state = version.state.after(version.state.store(value))
        versions.finish(version)
        return versions

    def begin(self) -> Version:
        name = UOp.new_buffer(self.buffer.device, self.buffer.shape[0], self.buffer.dtype)
        return Version(name, name)

    def finish(self, version: Version) -> None:
        self.names.append(version.name)
        self.taken.add(version.name)
        self.states.append(version.state)
        self.state = version.state

    def depends_elementwise(self, value: UOp, view: UOp, is_apart: Callable[[UOp], bool] = lambda u: False) -> bool:
        """Whether every path from `value` to a version of the buffer leads through `view` of the present one, and only
        through operations that keep elements in place, or through a part of the present one that `is_apart` from it:
        then storing the value over the view reads nothing that is already overwritten. What lies behind another
        buffer's state was computed by other kernels."""
        wanted = unshaped(view)
        reaches: dict[UOp, bool] = {}
        safe: dict[UOp, bool] = {}
        for u in value.toposort(lambda u: u.op is not Ops.AFTER or u.buf_uop in self.names):
            found = [s for s in u.src if reaches.get(s)]
            reaches[u] = u in self.names or u.op is Ops.AFTER or bool(found)
            reaches[u] = reaches[u] and not is_apart(u)
            if not reaches[u] or u is wanted:
                safe[u] = True
            elif u.op is Ops.RESHAPE:
                safe[u] = safe[u.src[0]]
            elif u.op in GroupOp.Elementwise:
                safe[u] = all(safe[s] and s.shape == u.shape for s in found)
            else:
                safe[u] = False
        return safe.get(value, True)


def held(value: Tensor, device: str) -> Tensor:
    """The value materialised, in a buffer of its own."""
    buffer = UOp.new_buffer(device, value.numel(), value.dtype)
    return Tensor(buffer.after(buffer.store(value.reshape(-1).uop))).reshape(value.shape)
