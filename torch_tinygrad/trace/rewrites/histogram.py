"""Histograms in any number of dimensions: edges, the bin of every point by search, and weights added up by bin."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .registry import rewrites

aten = torch.ops.aten


def edges_of(x: Tensor, bins: list[int], limits) -> list[Tensor]:
    """The edges in every dimension: between the given limits, or the data's."""
    edges = []
    for d, count in enumerate(bins):
        if limits is not None:
            low, high = limits[2 * d], limits[2 * d + 1]
            if low == high:
                low, high = low - 0.5, high + 0.5
            edges.append(torch.linspace(low, high, count + 1, dtype=x.dtype, device=x.device))
            continue
        if x.shape[0]:
            low, high = torch.aminmax(x[:, d])
        else:
            low, high = torch.zeros((), dtype=x.dtype, device=x.device), torch.ones((), dtype=x.dtype, device=x.device)
        flat = low == high
        low, high = torch.where(flat, low - 0.5, low), torch.where(flat, high + 0.5, high)
        edges.append(aten.linspace.Tensor_Tensor(low, high, count + 1, dtype=x.dtype, device=x.device))
    return edges


def counted(x: Tensor, edges: list[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    """Weights of the points `x` (points, dimensions) in every bin. The last edge belongs to the last bin."""
    shape = [e.shape[0] - 1 for e in edges]
    index = torch.zeros((), dtype=torch.int64, device=x.device)
    inside = []
    for d, (e, count) in enumerate(zip(edges, shape, strict=True)):
        column = x[:, d].contiguous()
        found = torch.searchsorted(e.contiguous(), column, right=True) - 1
        found = torch.where(column == e[-1], count - 1, found)
        inside.append((column >= e[0]) & (column <= e[-1]))
        index = index * count + found.clamp(0, count - 1)
    kept = functools.reduce(torch.logical_and, inside)
    given = torch.ones_like(x[:, 0]) if weight is None else weight.reshape(-1).to(x.dtype)
    total = functools.reduce(lambda a, b: a * b, shape, 1)
    sums = torch.zeros(total, dtype=x.dtype, device=x.device).scatter_add(
        0, index.expand(x.shape[0]), torch.where(kept, given, 0)
    )
    hist = sums.reshape(shape)
    if density:
        hist = hist / sums.sum()
        for d, e in enumerate(edges):
            widths = (e[1:] - e[:-1]).reshape([-1 if i == d else 1 for i in range(len(edges))])
            hist = hist / widths
    return hist


def points(x: Tensor) -> Tensor:
    """The last dimension holds coordinates."""
    return x.reshape(-1, x.shape[-1])


@rewrites(aten.histogram.bin_ct)
def histogram(x: Tensor, bins: int = 100, *, range=None, weight=None, density: bool = False):
    column = x.reshape(-1, 1)
    edges = edges_of(column, [bins], range)
    return counted(column, edges, weight, density), edges[0]


@rewrites(aten.histogram.bins_tensor)
def histogram_of_edges(x: Tensor, bins: Tensor, *, weight=None, density: bool = False):
    return counted(x.reshape(-1, 1), [bins], weight, density), bins.clone()


@rewrites(aten._histogramdd_bin_edges.default)
def histogramdd_bin_edges(x: Tensor, bins, *, range=None, weight=None, density: bool = False):
    return edges_of(points(x), list(bins), range)


@rewrites(aten._histogramdd_from_bin_cts.default)
def histogramdd(x: Tensor, bins, *, range=None, weight=None, density: bool = False):
    rows = points(x)
    return counted(rows, edges_of(rows, list(bins), range), weight, density)


@rewrites(aten._histogramdd_from_bin_tensors.default)
def histogramdd_of_edges(x: Tensor, bins, *, weight=None, density: bool = False):
    return counted(points(x), list(bins), weight, density)
