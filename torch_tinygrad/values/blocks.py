"""Buffers that lie side by side in another one: what is computed in parts is whole without being copied together, and
parts of a whole are buffers of their own, so that kernels over them are the same but for an address.

To tinygrad all of these are separate buffers. A call that does nothing stands between a whole and its parts, so that
whoever reads one runs after the writers of the other; where they lie is for the engine to follow (`Places`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tinygrad import Tensor
from tinygrad.uop.ops import Ops, UOp

from ..kernels.threads import unshaped
from ..lower.registry import SideBySide
from .in_place import held

# Bytes that parts start at multiples of, as buffers do.
ALIGNMENT = 64


@dataclass
class Places:
    """`inside` has, for each buffer that is a part, the buffer it lies in and the bytes before it there. Buffers that
    storages had before the trace are `taken`: they stay where they are."""

    device: str
    has_views: bool  # whether the device can address parts of a buffer
    inside: dict[UOp, tuple[UOp, int]] = field(default_factory=dict)
    taken: set[UOp] = field(default_factory=set)

    def joined(self, starts: list[int], values: list[Tensor], count: int) -> tuple[Tensor, list[Tensor]]:
        """A flat tensor of `count` elements of which these are, from these elements on; and they as buffers in it."""
        dtype = values[0].dtype
        whole = UOp.new_buffer(self.device, count, dtype)
        states = [self._own_buffer(value) for value in values]
        for start, state in zip(starts, states, strict=True):
            self.inside[state.buf_uop] = whole, start * dtype.itemsize
        return Tensor(whole.after(_placement(whole, *states))), [Tensor(state).flatten() for state in states]

    def part(self, whole: UOp, offset: int, count: int) -> Tensor:
        """A flat tensor of some elements of what was stored to a buffer."""
        part = UOp.new_buffer(self.device, count, whole.dtype)
        self.inside[part] = whole.buf_uop, offset * whole.dtype.itemsize
        return Tensor(part.after(_placement(part, whole)))

    def side_by_side(self, results: SideBySide) -> Tensor:
        """The results in one buffer, each stored there by a kernel of its own: as those have the same loops, they are
        merged (`engine/merge.py`)."""
        *outer, width = results.values[0].shape
        rows, row = prod(outer), width * len(results.values)
        dtype = results.values[0].dtype
        whole = UOp.new_buffer(self.device, rows * row, dtype)
        states = []
        for i, value in enumerate(results.values):
            column = UOp.new_buffer(self.device, rows * row, dtype)
            self.inside[column] = whole, i * width * dtype.itemsize
            elements = column.reshape((rows, row)).shrink(((0, rows), (0, width)))
            states.append(column.after(elements.store(value.reshape(rows, width).uop)))
        return Tensor(whole.after(_placement(whole, *states))).reshape((*outer, row))

    def stored_state(self, value: UOp) -> UOp | None:
        """The state of the buffer that the value was stored to, by a kernel or a step of ATen's, where it was: that
        buffer can be a storage's, or have parts."""
        value = unshaped(value)
        if value.op is not Ops.AFTER or not _is_buffer(value.src[0]) or value.buf_uop in self.taken:
            return None
        made = value.src[1]
        return value if made.op is Ops.CALL or (made.op is Ops.STORE and made.src[0] is value.src[0]) else None

    def has_own_buffer(self, value: Tensor) -> bool:
        """Whether the value has a buffer of its own that can lie anywhere."""
        state = self.stored_state(value.uop) if self.has_views else None
        return state is not None and state.buf_uop not in self.inside and state.numel() == state.buf_uop.numel()

    def _own_buffer(self, value: Tensor) -> UOp:
        state = self.stored_state((value if self.has_own_buffer(value) else held(value, self.device)).uop)
        assert state is not None
        return state


def _is_buffer(before: UOp) -> bool:
    """Whether this is a buffer, or one that a kernel went on with (`fresh`): nothing else reads what it held before."""
    while (before := unshaped(before)).op is Ops.AFTER:
        before = before.src[0]
    return before.op is Ops.BUFFER


def _placement(*states: UOp) -> UOp:
    """A call that makes the first buffer of what the others hold: they lie in the same memory."""
    return UOp(Ops.CUSTOM_FUNCTION, src=(), arg="place").call(*states)


def is_placement(call: UOp) -> bool:
    return call.src[0].op is Ops.CUSTOM_FUNCTION and call.src[0].arg == "place"
