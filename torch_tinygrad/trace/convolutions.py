"""Convolutions of few places with many channels, as matrix products: the library reorders all their weights at each
call, which costs more than it saves.

Two threads, milliseconds as a convolution → as products (batch, channels, size → channels, kernel): gradient of the
weights of 16, 512, 2 → 512, 3: 3.0 → 1.7; of 16, 256, 4 → 512, 3 by steps of two: 1.5 → 0.9; forward, input and weights
of 16, 256, 4 → 512, 1 by steps of two: 0.21, 0.22, 0.19 → 0.11, 0.10, 0.10; of 16, 1024, 4 → 256, 1: 1.1, 1.3, 2.1 →
0.8, 1.1, 1.2. With more places the library is ahead: 16, 64, 16 → 256, 1: 0.7 → 0.9; 8, 256, 56 → 512, 1 by steps of
two: 7.7, 8.3, 8.0 → 10.3, 8.2, 9.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch

from .adding import Nodes, transposed
from .geometry import strides_of
from .nodes import Node, Number, Region, Trace, plain
from .pointwise import FILL

FORWARD, BACKWARD = "aten::convolution", "aten::convolution_backward"


def as_products(trace: Trace, calls_library: Callable[[Node], bool]) -> Trace:
    """The trace with the convolutions that are better products as such; `calls_library` says which nodes a library
    computes, as it would their products."""
    nodes: list[Node] = []
    for node in trace.nodes:
        added = Nodes(nodes, trace.storages, node.origin)
        if node.op not in (FORWARD, BACKWARD) or not calls_library(node):
            nodes.append(node)
        elif node.op == FORWARD:
            _forward(node, added)
        else:
            _backward(node, added)
    return Trace(nodes, trace.storages, trace.numbers)


@dataclass(frozen=True)
class Geometry:
    """Of a convolution from `x` to `y`."""

    x: Region
    weight: Region
    y: Region
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @staticmethod
    def of(
        x: Region, weight: Region, y: Region | None, stride, padding, dilation, transposed, _, groups
    ) -> Geometry | None:
        rank = len(x.size) - 2
        if y is None or plain(transposed) or plain(groups) != 1 or x.dtype not in (torch.float32, torch.float64):
            return None
        each = (plain(v) * rank if len(v) == 1 else plain(v) for v in (stride, padding, dilation))
        return Geometry(x, weight, y, *map(tuple, each))

    @property
    def places(self) -> int:
        return self.y.numel // self.y.size[1]

    @property
    def is_pointwise(self) -> bool:
        """Whether it is the product of each place's channels with one matrix, and better that."""
        if prod(self.weight.size[2:]) != 1 or any(self.padding):
            return False
        return self.places <= (8 if prod(self.stride) > 1 else 4) * max(self.weight.size[:2])

    @property
    def has_many_weights(self) -> bool:
        """Whether their gradient is better a product with the windows of `x`."""
        return len(self.x.size) == 4 and 2 * self.places <= self.weight.size[0]

    def read_places(self, x: Region) -> Region:
        """The part of `x`, or of its gradient, that a pointwise convolution reads: as large as `y`."""
        stride = (*x.stride[:2], *(st * step for st, step in zip(x.stride[2:], self.stride, strict=True)))
        return x.at(size=(*x.size[:2], *self.y.size[2:]), stride=stride)


def as_matrix(weight: Region) -> Region:
    return weight.at(size=weight.size[:2], stride=weight.stride[:2])


def channels_last(matrix: Region, size: tuple[int, ...]) -> Region:
    """A matrix of (places, channels) as what it is in a tensor of this size."""
    channels, places = size[1], size[2:]
    inner = (channels * stride for stride in strides_of(places))
    return matrix.at(size=size, stride=(channels * prod(places), 1, *inner))


def contiguous(region: Region, size: tuple[int, ...]) -> Region:
    return region.at(size=size, stride=strides_of(size))


def by_places(region: Region, nodes: Nodes) -> Region:
    """The region's values as a matrix of (places, channels)."""
    matrix = nodes.new(region, region.numel // region.size[1], region.size[1])
    nodes.copy(region, channels_last(matrix, region.size))
    return matrix


def _forward(node: Node, nodes: Nodes) -> None:
    x, weight, bias, *settings = node.args
    (y,) = node.outs
    geometry = Geometry.of(x, weight, y, *settings)
    if geometry is None or not geometry.is_pointwise:
        nodes.nodes.append(node)
        return
    factors = by_places(geometry.read_places(x), nodes), transposed(as_matrix(weight))
    result = nodes.new(x, geometry.places, weight.size[0])
    if bias is None:
        nodes.product(*factors, result)
    else:
        nodes.add("aten::addmm", (bias, *factors, Number(1), Number(1)), result)
    nodes.copy(channels_last(result, geometry.y.size), geometry.y)


def _backward(node: Node, nodes: Nodes) -> None:
    grad, x, weight, *rest = node.args
    bias_size, *settings, _ = rest
    grad_x, grad_weight, grad_bias = node.outs
    geometry = Geometry.of(x, weight, grad, *settings)
    if geometry is None or not (geometry.is_pointwise or (grad_weight is not None and geometry.has_many_weights)):
        nodes.nodes.append(node)
        return
    rows = by_places(grad, nodes)
    if grad_bias is not None:
        nodes.add("aten::sum.dim_IntList", (rows, [Number(0)], Number(False), None), grad_bias)
    if grad_weight is not None:
        windows = by_places(geometry.read_places(x), nodes) if geometry.is_pointwise else by_windows(geometry, nodes)
        product = nodes.product(transposed(rows), windows)
        nodes.copy(contiguous(product, weight.size), grad_weight)
    if grad_x is not None and geometry.is_pointwise:
        product, inside = nodes.product(rows, as_matrix(weight)), geometry.read_places(grad_x)
        if inside.numel < grad_x.numel:
            nodes.add(FILL, (grad_x, Number(0)), grad_x)
        nodes.copy(channels_last(product, inside.size), inside)
    elif grad_x is not None:
        only_x = [Number(True), Number(False), Number(False)]
        nodes.add(BACKWARD, (grad, x, weight, bias_size, *settings, only_x), grad_x, None, None)


def by_windows(geometry: Geometry, nodes: Nodes) -> Region:
    """What each place sees of `x`, as a matrix of (places, channels and kernel)."""
    x, weight = geometry.x, geometry.weight
    matrix = nodes.new(x, geometry.places, prod(weight.size[1:]))
    columns = channels_last(matrix, (x.size[0], matrix.size[1], geometry.places // x.size[0]))
    settings = (weight.size[2:], geometry.dilation, geometry.padding, geometry.stride)
    nodes.add("aten::im2col", (x, *map(list, settings)), columns)
    return matrix
