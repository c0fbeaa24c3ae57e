"""Regions of flat tensors: movement operations, elements as bytes, and how far regions that move have moved."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.trace import geometry
from torch_tinygrad.trace.nodes import Region

from ..lower.registry import PART_OF


def apply(value: Tensor, plan: list[geometry.Step]) -> Tensor:
    """The movement operations of a plan, on a tensor."""
    for kind, argument in plan:
        value = value.flip(argument) if kind == "flip" else getattr(value, kind)(argument)
    return value


def covers(n: int, region: Region) -> bool:
    return region.moves < 0 and geometry.covers(n, region.size, region.stride, region.offset)


def in_memory(region: Region) -> Region:
    """The region as what lies there: of complex numbers both parts, in a new last dimension, and of bools the bytes,
    which are true if they are not zero."""
    if region.dtype is torch.bool:
        return region.at(dtype=torch.uint8)
    if not region.dtype.is_complex:
        return region
    size, stride = (*region.size, 2), (*(2 * s for s in region.stride), 1)
    return Region(region.storage, PART_OF[region.dtype], size, stride, 2 * region.offset, region.moves)


@dataclass(frozen=True)
class Shift:
    """By how many bytes regions have moved: one of the program's integers."""

    inputs: Tensor
    place: int

    def elements(self, itemsize: int) -> Tensor:
        bytes_moved = self.inputs.shrink(((self.place, self.place + 1),)).reshape(())
        return (bytes_moved // itemsize).cast(dtypes.int32)


def bytes_region(region: Region) -> Region:
    """A region as the bytes of its elements, side by side in a new last dimension."""
    width = region.dtype.itemsize
    stride = (*(s * width for s in region.stride), 1)
    return Region(region.storage, torch.uint8, (*region.size, width), stride, region.offset * width, region.moves)
