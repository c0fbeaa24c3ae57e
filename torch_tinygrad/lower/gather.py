"""Reading by index: every form becomes one indexed dimension and one index, which tinygrad turns into direct loads."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels.arrays import positions, take_rows, zeros
from torch_tinygrad.trace.geometry import strides_of

from .nonzero import mask_indices, true_positions
from .registry import Meta, lowers
from .shape import positive

aten = torch.ops.aten


def wrapped(index: Tensor, size: int) -> Tensor:
    """An index as int32 (int64 for huge sizes) with negative values counted from the end."""
    index = index.cast(dtypes.int32 if size < 2**31 else dtypes.int64)
    return (index < 0).where(index + size, index)


def take_flat(x: Tensor, index: Tensor) -> Tensor:
    """The elements of 1-dim `x` at `index`, which may have any shape."""
    return take_rows(x, 0, index)


@dataclass(frozen=True)
class Joined:
    """Several index tensors joined into one: `order` moves the indexed dimensions together at `at`, where they form
    one dimension of `size` cells; `index` selects cells."""

    order: tuple[int, ...]
    at: int
    count: int
    size: int
    index: Tensor

    def join(self, x: Tensor) -> Tensor:
        moved = x.permute(*self.order)
        return moved.reshape(*moved.shape[: self.at], self.size, *moved.shape[self.at + self.count :])

    def split(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The inverse of `join` for a tensor whose cells were kept."""
        back = tuple(self.order.index(d) for d in range(len(self.order)))
        return x.reshape(tuple(shape[d] for d in self.order)).permute(*back)


def join_indices(shape: tuple[int, ...], indices: list[Tensor | None]) -> Joined:
    """PyTorch's advanced indexing: adjacent indices stay where they are, others move to the front."""
    at = [d for d, index in enumerate(indices) if index is not None]
    adjacent = at == list(range(at[0], at[-1] + 1))
    first = at[0] if adjacent else 0
    rest = [d for d in range(len(shape)) if d not in at]
    order = tuple(rest[:first] + at + rest[first:])
    sizes = tuple(shape[d] for d in at)
    parts = [wrapped(indices[d], shape[d]) for d in at]
    if math.prod(sizes) >= 2**31:
        parts = [p.cast(dtypes.int64) for p in parts]
    joined = None
    for part, stride in zip(parts, strides_of(sizes), strict=True):
        scaled = part if stride == 1 else part * stride
        joined = scaled if joined is None else joined + scaled
    return Joined(order, first, len(at), math.prod(sizes), joined)


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(x: Tensor, indices: list[Tensor | None], *, meta: tuple[Meta, ...]) -> Tensor:
    given = [i for i in indices if i is not None]
    if not given:
        return x
    if any(i.dtype in (dtypes.bool, dtypes.uint8) for i in given):
        if len(given) > 1:
            raise NotImplementedError("index: a mask beside other indices must be turned into its positions first")
        at = next(d for d, i in enumerate(indices) if i is not None)
        if not given[0].ndim:
            return x.unsqueeze(0).expand(meta[0].shape) if meta[0].shape[0] else zeros(meta[0].shape, x.dtype)
        indices = [*indices[:at], *mask_indices(given[0] != 0, meta[0].shape[at])]
    joined = join_indices(tuple(x.shape), indices)
    return take_rows(joined.join(x), joined.at, joined.index)


@lowers(aten.masked_select.default)
def masked_select(x: Tensor, mask: Tensor, *, meta: tuple[Meta, ...]) -> Tensor:
    """The count of true elements is known by now: it is the result's size."""
    (count,) = meta[0].shape
    if not count:
        return zeros((0,), x.dtype)
    shape = tuple(torch.broadcast_shapes(tuple(x.shape), tuple(mask.shape)))
    x, mask = x.expand(shape), mask.expand(shape)
    return take_flat(x.flatten(), true_positions(mask.flatten(), count))


@lowers(aten.index_select.default, fuses=True)
def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    if not x.ndim:
        return x.expand(index.numel()).reshape(())
    dim = positive(dim, x.ndim)
    return take_rows(x, dim, wrapped(index.reshape(index.numel()), x.shape[dim]))


@lowers(aten.take.default)
def take(x: Tensor, index: Tensor) -> Tensor:
    return take_flat(x.flatten(), wrapped(index, x.numel()))


@lowers(aten.gather.default, fuses=True)
def gather(x: Tensor, dim: int, index: Tensor, *, meta: tuple[Meta, ...]) -> Tensor:
    if 0 in index.shape:
        return zeros(meta[0].shape, x.dtype)
    if not x.ndim or not index.ndim:
        return take_flat(x.reshape(1), index)
    dim = positive(dim, x.ndim)
    index = wrapped(index, x.shape[dim])
    if x.shape[dim] < 32768:
        return x.gather(dim, index)
    return take_flat(x.flatten(), flat_positions(tuple(x.shape), dim, index))


def flat_positions(shape: tuple[int, ...], dim: int, index: Tensor) -> Tensor:
    """Where in a contiguous tensor of `shape` each element of `gather(dim, index)` lies."""
    if math.prod(shape) >= 2**31:
        index = index.cast(dtypes.int64)
    strides = strides_of(shape)
    at = index * strides[dim]
    for d, size in enumerate(index.shape):
        if d != dim and size > 1:
            at = at + positions(size, d, index.ndim) * strides[d]
    return at
