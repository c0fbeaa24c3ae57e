"""Regions of flat tensors: reading and writing them, elements as bytes, and how far regions that move have moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

from torch_tinygrad.trace import geometry
from torch_tinygrad.trace.nodes import Region

from ..kernels.updates import update
from ..lower.gather import take_flat
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
    position: int

    def elements(self, itemsize: int) -> Tensor:
        bytes_moved = self.inputs.shrink(((self.position, self.position + 1),)).reshape(())
        return (bytes_moved // itemsize).cast(dtypes.int32)


def bytes_region(region: Region) -> Region:
    """A region as the bytes of its elements, side by side in a new last dimension."""
    width = region.dtype.itemsize
    stride = (*(s * width for s in region.stride), 1)
    return Region(region.storage, torch.uint8, (*region.size, width), stride, region.offset * width, region.moves)


def retyped(flat: Tensor, dtype: DType, count: int) -> Tensor:
    """The bytes of a flat tensor as so many elements of `dtype`."""
    if flat.dtype == dtype:
        return flat
    if count * dtype.itemsize != flat.shape[0] * flat.dtype.itemsize:
        return flat.bitcast(dtypes.uint8).shrink(((0, count * dtype.itemsize),)).bitcast(dtype)
    return flat.bitcast(dtype)


# How far a group of regions has moved, by its number.
Shifts = Callable[[int], Shift]


def _index_of(region: Region, shift: Shifts) -> Tensor:
    """For each element of a region, its place in the flat array."""
    index = Tensor(region.offset, dtype=dtypes.int32)
    if region.moves >= 0:
        index = index + shift(region.moves).elements(region.dtype.itemsize)
    for axis, (size, stride) in enumerate(zip(region.size, region.stride, strict=True)):
        steps = Tensor.arange(size, dtype=dtypes.int32) * stride
        index = index + steps.reshape((1,) * axis + (size,) + (1,) * (len(region.size) - axis - 1))
    return index.expand(region.size)


def strided(flat: Tensor, region: Region, shift: Shifts) -> Tensor:
    """A region of a flat array."""
    plan = None
    if region.moves < 0:
        plan = geometry.read_plan(flat.shape[0], region.size, region.stride, region.offset)
    return take_flat(flat, _index_of(region, shift)) if plan is None else apply(flat, plan)


def scattered(flat: Tensor, region: Region, value: Tensor, shift: Shifts) -> Tensor:
    """A flat array with `value` in a region, element by element."""
    return update(flat, 0, _index_of(region, shift).flatten(), value.flatten(), "set")


def composed(flat: Tensor, region: Region, value: Tensor, shift: Shifts) -> Tensor:
    """A flat array with `value` in a region, as one expression."""
    if region.moves >= 0:
        return scattered(flat, region, value, shift)
    plan = geometry.write_plan(flat.shape[0], region.size, region.stride, region.offset)
    assert plan is not None
    mask = apply(Tensor(True, dtype=dtypes.bool, device=flat.device).expand(region.size), plan)
    return mask.where(apply(value, plan), flat)
