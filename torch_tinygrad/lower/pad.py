"""Padding by a constant, by reflection and by repetition of the edge, with gradients that add what was copied."""

from __future__ import annotations

import torch
from tinygrad import Tensor

from .matmul import accumulator
from .registry import is_number, lowers
from .taps import positions, take

aten = torch.ops.aten


def grouped(pad) -> list[tuple[int, int]]:
    """PyTorch's flat list counts from the last dimension."""
    return [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]


@lowers(aten.constant_pad_nd.default, lifts=("value",), fuses=True)
def constant_pad(x: Tensor, pad, value=0) -> Tensor:
    pads = grouped(pad)
    pads = ((0, 0),) * (x.ndim - len(pads)) + tuple(pads)
    if is_number(value):
        return x.pad(pads, value=value)
    inside = x.const_like(1).cast("bool").pad(pads)
    return inside.where(x.pad(pads), value.cast(x.dtype))


def reflected(position: Tensor, size: int) -> Tensor:
    return (size - 1) - (position.abs() - (size - 1)).abs()


def repeated(position: Tensor, size: int) -> Tensor:
    return position.maximum(0).minimum(size - 1)


def source_pad(x: Tensor, padding, source) -> Tensor:
    """Each output dimension reads the position that `source` names."""
    pads = grouped(padding)
    for i, (before, after) in enumerate(pads):
        axis = x.ndim - len(pads) + i
        size = x.shape[axis]
        x = take(x, axis, source(positions(size + before + after) - before, size))
    return x


def reflection_sources(size: int, before: int, after: int) -> Tensor:
    """For every input position, where it and its mirror images are; -1 where there is none."""
    at, end = positions(size), size + before + after
    mirrored = [(at + before, None), (before - at, at > 0), (before + 2 * (size - 1) - at, at < size - 1)]
    places = []
    for place, exists in mirrored:
        inside = (place >= 0) & (place < end)
        places.append((inside if exists is None else inside & exists).where(place, -1))
    return Tensor.stack(*places, dim=1)


def reflection_pad_backward(grad: Tensor, x: Tensor, padding) -> Tensor:
    grad = grad.cast(accumulator(grad.dtype))
    pads = grouped(padding)
    for i, (before, after) in enumerate(pads):
        axis = x.ndim - len(pads) + i
        places = reflection_sources(x.shape[axis], before, after)
        parts = [take(grad, axis, places[:, column]) for column in range(3)]
        grad = parts[0] + parts[1] + parts[2]
    return grad


def replication_pad_backward(grad: Tensor, x: Tensor, padding) -> Tensor:
    """The middle, with the sums of what was repeated added at its two ends."""
    grad = grad.cast(accumulator(grad.dtype))
    pads = grouped(padding)
    for i, (before, after) in enumerate(pads):
        axis, rank = x.ndim - len(pads) + i, x.ndim
        size, length = x.shape[axis], grad.shape[axis]

        def along(pair, axis=axis, rank=rank):
            return tuple(pair if d == axis else None for d in range(rank))

        middle = grad.pad(along((-before, -after)))
        if before > 0:
            middle = middle + grad.shrink(along((0, before))).sum(axis, keepdim=True).pad(along((0, size - 1)))
        if after > 0:
            tail = grad.shrink(along((length - after, length))).sum(axis, keepdim=True)
            middle = middle + tail.pad(along((size - 1, 0)))
        grad = middle
    return grad


for _rank in (1, 2, 3):

    def _op(name: str, rank: int = _rank):
        return getattr(aten, name.format(rank)).default

    lowers(_op("reflection_pad{}d"))(lambda x, padding: source_pad(x, padding, reflected))
    lowers(_op("replication_pad{}d"))(lambda x, padding: source_pad(x, padding, repeated))
    lowers(_op("reflection_pad{}d_backward"))(reflection_pad_backward)
    lowers(_op("replication_pad{}d_backward"))(replication_pad_backward)
