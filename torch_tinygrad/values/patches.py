"""Parts of a storage that were written and how they lie, and copies of all of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from tinygrad import Tensor
from tinygrad.uop.ops import UOp

from torch_tinygrad.trace import geometry
from torch_tinygrad.trace.nodes import Region


@dataclass(frozen=True)
class Patch:
    """A part of a buffer that was written. `update`, where there is one, writes it into the buffer's current state (a
    flat tensor) itself, touching only what changes; `value` is what the region then holds."""

    region: Region
    value: Tensor
    update: Callable[[Tensor], Tensor] | None = None

    @property
    def is_update(self) -> bool:
        """Whether `value` costs much more than the update does."""
        return self.update is not None and self.region.moves < 0


@dataclass(frozen=True)
class Copies:
    """Buffers in which a value lies in other orders: by size and strides of the region, and its order there."""

    value: UOp | None
    buffers: dict[tuple, Tensor]


def interval(region: Region) -> tuple[int, int]:
    return geometry.extent(region.size, region.stride, region.offset)


def is_block(region: Region) -> bool:
    """Whether the region is an interval of elements, in order."""
    return region.moves < 0 and region.numel > 0 and geometry.is_contiguous(region.size, region.stride)


@dataclass
class Blocks:
    """Patches that are disjoint intervals, by their first elements. `numbers` are their places among the patches."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def add(self, patch: Patch, number: int) -> bool:
        """Adds the patch, if it is an interval and meets no other."""
        low, high = interval(patch.region)
        if patch.update is not None or not is_block(patch.region) or self.meets(low, high):
            return False
        at = bisect_right(self.starts, low)
        self.starts.insert(at, low)
        self.ends.insert(at, high)
        self.numbers.insert(at, number)
        return True

    def meets(self, low: int, high: int) -> bool:
        """Whether some of these elements are in a block."""
        at = bisect_right(self.ends, low)
        return at < len(self.starts) and self.starts[at] < high

    def holding(self, low: int, high: int) -> int | None:
        """The patch that all of these elements are in."""
        at = bisect_right(self.starts, low) - 1
        return self.numbers[at] if at >= 0 and high <= self.ends[at] else None

    def tile(self, count: int) -> bool:
        """Whether they are all there is, side by side."""
        return len(self.starts) > 1 and [0, *self.ends] == [*self.starts, count]
