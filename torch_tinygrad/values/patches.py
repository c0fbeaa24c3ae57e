"""Parts of a storage that were written and how they lie, and the layouts that all of it lies in as well."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from tinygrad import Tensor
from tinygrad.uop.ops import UOp

from torch_tinygrad.trace import geometry
from torch_tinygrad.trace.nodes import Region

from ..kernels.updates import write_shifted
from .regions import Shift


@dataclass(frozen=True)
class Patch:
    """A part of a buffer that was written. `update`, where there is one, writes it into the buffer's current state (a
    flat tensor) itself, touching only what changes, or gives None where that takes a copy; what it reads of the names
    of earlier states, it reads before. `value` is what the region then holds."""

    region: Region
    value: Tensor
    update: Callable[[Tensor, Collection[UOp]], Tensor | None] | None = None

    @property
    def is_update(self) -> bool:
        """Whether `value` costs much more than the update does."""
        return self.update is not None and self.region.moves < 0


def moving_store(
    region: Region, value: Tensor, shift: Callable[[int], Shift]
) -> Callable[[Tensor, Collection[UOp]], Tensor]:
    """What writes a region that moves, as a patch's `update`."""

    def store(state: Tensor, older: Collection[UOp]) -> Tensor:
        now = shift(region.moves)
        return write_shifted(state, region, value, now.inputs, now.position, older)

    return store


class Reads(dict[UOp, Region]):
    """What a value without patches was read for: the region, by the expression that it gave."""

    def apart_from(self, region: Region) -> Callable[[UOp], bool]:
        """Whether an expression is what was read where the region is not."""

        def is_apart(u: UOp) -> bool:
            read = self.get(u)
            if read is None or read.moves >= 0 or read.dtype != region.dtype:
                return False
            return not geometry.overlaps(read, region)

        return is_apart


@dataclass
class Layouts:
    """Buffers in which all of a value lies as well, in other orders: by size and strides of the region, and its order
    there. They hold for one value, and are forgotten with it."""

    value: UOp | None = None
    buffers: dict[tuple, Tensor] = field(default_factory=dict)

    def of(self, value: Tensor | None) -> dict[tuple, Tensor]:
        return self.buffers if value is not None and value.uop is self.value else {}

    def keep(self, value: Tensor, key: tuple, make: Callable[[], Tensor]) -> Tensor:
        """The value's buffer under this key, made once."""
        if value.uop is not self.value:
            self.value, self.buffers = value.uop, {}
        if key not in self.buffers:
            self.buffers[key] = make()
        return self.buffers[key]


def interval(region: Region) -> tuple[int, int]:
    return geometry.extent(region.size, region.stride, region.offset)


def is_block(region: Region) -> bool:
    """Whether the region is an interval of elements, in order."""
    return region.moves < 0 and region.numel > 0 and geometry.is_contiguous(region.size, region.stride)


@dataclass
class Blocks:
    """Patches that are disjoint intervals, by their first elements. `numbers` are theirs among the patches."""

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


@dataclass
class Patches:
    """What was written to a value since it was made, oldest first, all in one dtype."""

    all: list[Patch] = field(default_factory=list)
    newest: dict[Region, int] = field(default_factory=dict)  # of each region, the number of its last patch
    blocks: Blocks | None = field(default_factory=Blocks)  # the patches, while they are disjoint intervals

    def __len__(self) -> int:
        return len(self.all)

    def __getitem__(self, number: int) -> Patch:
        return self.all[number]

    @property
    def dtype(self) -> torch.dtype:
        return self.all[0].region.dtype

    def add(self, patch: Patch) -> None:
        self.newest[patch.region] = len(self.all)
        if self.blocks is not None and not self.blocks.add(patch, len(self.all)):
            self.blocks = None
        self.all.append(patch)

    def hold(self, number: int, value: Tensor) -> Patch:
        """The patch with its value in a buffer."""
        self.all[number] = Patch(self.all[number].region, value)
        return self.all[number]

    def seen_through(self, region: Region) -> tuple[int, bool]:
        """The patch that was written to this very region (-1: none), and whether there are others in it since."""
        written = self.newest.get(region, -1)
        if self.blocks is not None and self.all and self.dtype == region.dtype:
            return written, written < 0 and (region.moves >= 0 or self.blocks.meets(*interval(region)))
        since = self.all[written + 1 :]
        return written, any(p.region.dtype != region.dtype or geometry.overlaps(p.region, region) for p in since)

    def holding(self, region: Region) -> int | None:
        """The one patch that the region lies in, where patches are disjoint intervals."""
        if self.blocks is None or not self.all or region.moves >= 0:
            return None
        return self.blocks.holding(*interval(region)) if self.dtype == region.dtype else None

    def last(self) -> list[Patch]:
        """Of each region the last: what was written there before is gone."""
        return [patch for number, patch in enumerate(self.all) if self.newest[patch.region] == number]
