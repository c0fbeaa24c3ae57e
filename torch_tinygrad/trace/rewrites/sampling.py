"""Operators that pick elements at positions computed from other tensors, written in gathers: volumes sampled on a grid,
pooling windows at random places, distances of all pairs."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from .registry import rewrites

aten = torch.ops.aten

BILINEAR, NEAREST = 0, 1
ZEROS, BORDER, REFLECTION = 0, 1, 2


def reflected(at: Tensor, twice_low: int, twice_high: int) -> Tensor:
    if twice_low == twice_high:
        return torch.zeros_like(at)
    low, span = twice_low / 2, (twice_high - twice_low) / 2
    away = (at - low).abs()
    extra, flips = torch.fmod(away, span), torch.floor(away / span)
    return torch.where(torch.fmod(flips, 2) == 0, extra + low, span - extra + low)


def source_position(at: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    """A coordinate in [-1, 1] as a position among `size` elements."""
    at = (at + 1) / 2 * (size - 1) if align_corners else ((at + 1) * size - 1) / 2
    if padding == REFLECTION:
        at = reflected(at, 0, 2 * (size - 1)) if align_corners else reflected(at, -1, 2 * size - 1)
    return at if padding == ZEROS else at.clamp(0, size - 1)


@rewrites(aten.grid_sampler_3d.default)
def grid_sampler_3d(volume: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    batch, channels, *sizes = volume.shape
    flat = volume.reshape(batch, channels, math.prod(sizes))
    points = grid.shape[1:-1]
    at = [source_position(grid[..., 2 - d], sizes[d], padding, align_corners) for d in range(3)]

    def taken(places: list[Tensor]) -> Tensor:
        """The volume at whole positions, 0 outside."""
        inside = functools.reduce(torch.logical_and, [(p >= 0) & (p < s) for p, s in zip(places, sizes, strict=True)])
        z, y, x = (p.clamp(0, s - 1).to(torch.int64) for p, s in zip(places, sizes, strict=True))
        index = ((z * sizes[1] + y) * sizes[2] + x).reshape(batch, 1, math.prod(points))
        values = flat.gather(2, index.expand(batch, channels, index.shape[2])).reshape(batch, channels, *points)
        return torch.where(inside.unsqueeze(1), values, 0)

    if mode == NEAREST:
        return taken([a.round() for a in at])
    lower = [a.floor() for a in at]
    parts = []
    for corner in range(8):
        far = [corner >> 2 & 1, corner >> 1 & 1, corner & 1]
        weights = [a - low if f else low + 1 - a for a, low, f in zip(at, lower, far, strict=True)]
        weight = (weights[2] * weights[1] * weights[0]).unsqueeze(1)
        parts.append(taken([low + f for low, f in zip(lower, far, strict=True)]) * weight)
    return functools.reduce(torch.add, parts)


def window_starts(samples: Tensor, size: int, outputs: int, kernel: int) -> Tensor:
    """Where the pooling windows of one dimension begin, for each plane's random number."""
    places = torch.arange(outputs, device=samples.device)
    if outputs == 1:
        return torch.full_like(samples, size - kernel).unsqueeze(-1).to(torch.int64)
    step = (size - kernel) / (outputs - 1)
    shift = samples.unsqueeze(-1)
    start = ((places + shift) * step).to(torch.int64) - (shift * step).to(torch.int64)
    return torch.where(places == outputs - 1, size - kernel, start)


def fractional_max_pool(x: Tensor, kernel: list[int], outputs: list[int], samples: Tensor, order: list[int]):
    """The greatest of each window and its place in the plane. `order` says which random number is which dimension's."""
    dims = len(kernel)
    planes, sizes = x.shape[:-dims], x.shape[-dims:]
    flat = x.reshape(*planes, math.prod(sizes))
    samples = samples.reshape(*planes, dims)
    index = torch.zeros((), dtype=torch.int64, device=x.device)
    for d in range(dims):
        start = window_starts(samples[..., order[d]], sizes[d], outputs[d], kernel[d])
        at = start.unsqueeze(-1) + torch.arange(kernel[d], device=x.device)
        shape = [1] * (2 * dims)
        shape[d], shape[dims + d] = outputs[d], kernel[d]
        index = index + at.reshape(*planes, *shape) * math.prod(sizes[d + 1 :])
    count, window = math.prod(outputs), math.prod(kernel)
    index = index.expand(*planes, *outputs, *kernel).reshape(*planes, count * window)
    values = flat.gather(-1, index).reshape(*planes, count, window)
    greatest, which = values.max(-1)
    places = index.reshape(*planes, count, window).gather(-1, which.unsqueeze(-1)).squeeze(-1)
    return greatest.reshape(*planes, *outputs), places.reshape(*planes, *outputs)


@rewrites(aten.fractional_max_pool2d.default)
def fractional_max_pool2d(x: Tensor, kernel_size, output_size, samples: Tensor):
    return fractional_max_pool(x, list(kernel_size), list(output_size), samples, [1, 0])


@rewrites(aten.fractional_max_pool3d.default)
def fractional_max_pool3d(x: Tensor, kernel_size, output_size, samples: Tensor):
    return fractional_max_pool(x, list(kernel_size), list(output_size), samples, [0, 1, 2])


@rewrites(aten._pdist_forward.default)
def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    count = x.shape[0]
    if count < 2:
        return x.new_empty(0)
    pairs = torch.arange(count * (count - 1) // 2, device=x.device)
    rows = torch.arange(count, device=x.device)
    starts = rows * (2 * count - 1 - rows) // 2
    first = torch.searchsorted(starts, pairs, right=True) - 1
    second = pairs - starts.index_select(0, first) + first + 1
    distances = aten._cdist_forward(x, x, p, None)
    return distances.reshape(count * count).index_select(0, first * count + second)
