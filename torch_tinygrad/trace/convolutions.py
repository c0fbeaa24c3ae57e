"""Convolutions of few places with many channels, as matrix products: the library reorders all their weights at each
call, which costs more than it saves.

Two threads, milliseconds as a convolution → as products (batch, channels, size → channels, kernel): gradient of the
weights of 16, 512, 2 → 512, 3: 3.0 → 1.6; of 16, 256, 4 → 512, 3 by steps of two: 1.5 → 0.9; that convolution and the
gradient of its input: 1.1, 1.7 → 0.9, 0.8; forward, input and weights of 16, 256, 4 → 512, 1 by steps of two: 0.21,
0.22, 0.19 → 0.11, 0.10, 0.10; of 16, 1024, 4 → 256, 1: 1.1, 1.3, 2.1 → 0.8, 1.1, 1.2. With more places the library is
ahead: 16, 64, 16 → 256, 1: 0.7 → 0.9; 8, 256, 56 → 512, 1 by steps of two: 7.7, 8.3, 8.0 → 10.3, 8.2, 9.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch

from .adding import Nodes, transposed
from .decisions import decide
from .geometry import strides_of
from .nodes import Node, Number, Region, Trace, plain
from .pointwise import FILL

# Elements that all places see together, each counted as often as it is seen.
SMALL = 1 << 15

FORWARD, BACKWARD = "aten::convolution", "aten::convolution_backward"


def as_products(trace: Trace, calls_library: Callable[[Node], bool]) -> Trace:
    """The trace with the convolutions that are better products as such; `calls_library` says which nodes a library
    computes, as it would their products."""
    nodes: list[Node] = []
    known: Known = {}
    trained = {node.args[2].storage for node in trace.nodes if node.op == BACKWARD}
    trained |= {out.storage for node in trace.nodes for out in node.outs if out is not None}
    for node in trace.nodes:
        added = Nodes(nodes, trace.storages, node.origin)
        if node.op not in (FORWARD, BACKWARD) or not calls_library(node):
            nodes.append(node)
        elif node.op == FORWARD:
            _forward(node, added, known, node.args[1].storage in trained)
        else:
            _backward(node, added, known)
        written = {out.storage for out in node.outs if out is not None}
        known = {key: made for key, made in known.items() if key[0].storage not in written}
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
    trains: bool = True  # the trace changes the weights, or has their gradient; else the library keeps them packed

    @staticmethod
    def of(
        x: Region,
        weight: Region,
        y: Region | None,
        stride,
        padding,
        dilation,
        transposed,
        _,
        groups,
    ) -> Geometry | None:
        rank = len(x.size) - 2
        if y is None or plain(transposed) or plain(groups) != 1 or x.dtype not in (torch.float32, torch.float64):
            return None
        each = (plain(v) * rank if len(v) == 1 else plain(v) for v in (stride, padding, dilation))
        stride, padding, dilation = map(tuple, each)
        return Geometry(x, weight, y, stride, padding, dilation)

    @property
    def places(self) -> int:
        return self.y.numel // self.y.size[1]

    @property
    def is_pointwise(self) -> bool:
        """Whether it is the product of each place's channels with one matrix, and better that."""
        if prod(self.weight.size[2:]) != 1 or any(self.padding):
            return False
        if self.is_small and decide("few places", self.places <= 16 * max(self.weight.size[:2])):
            return True
        return decide("pointwise", self.places <= (8 if prod(self.stride) > 1 else 4) * max(self.weight.size[:2]))

    @property
    def has_many_weights(self) -> bool:
        """Whether it is better a product of what each place sees with all weights."""
        is_wide = prod(self.weight.size[2:]) > 1
        many = (self.trains or not is_wide) and decide("many weights", 2 * self.places <= self.weight.size[0])
        return len(self.x.size) == 4 and (many or (is_wide and self.is_small))

    @property
    def is_small(self) -> bool:
        """Whether laying out what the places see takes less than the library's own preparations. Gradients were not
        measured."""
        return not self.trains and decide("small convolution", self.places * prod(self.weight.size[1:]) <= SMALL)

    @property
    def looks(self) -> tuple[tuple[int, ...], ...]:
        """Which elements a place sees, as `im2col` takes it: kernel, dilation, padding, stride."""
        return self.weight.size[2:], self.dilation, self.padding, self.stride

    def read_places(self, x: Region) -> Region:
        """The part of `x`, or of its gradient, that a pointwise convolution reads: as large as `y`."""
        stride = (*x.stride[:2], *(st * step for st, step in zip(x.stride[2:], self.stride, strict=True)))
        return x.at(size=(*x.size[:2], *self.y.size[2:]), stride=stride)


# What is laid out for a convolution and its gradients alike, as long as what it is made of is not written. Keys begin
# with that.
Known = dict[tuple, Region]


def as_matrix(weight: Region, nodes: Nodes, known: Known) -> Region:
    """(output channels, input channels and kernel)."""
    rows, columns = weight.size[0], prod(weight.size[1:])
    if columns == weight.size[1]:
        return weight.at(size=(rows, columns), stride=weight.stride[:2])
    if weight.stride != strides_of(weight.size):
        if (copied := known.get((weight,))) is None:
            copied = known[weight,] = nodes.new(weight, *weight.size)
            nodes.copy(weight, copied)
        weight = copied
    return contiguous(weight, (rows, columns))


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


def _forward(node: Node, nodes: Nodes, known: Known, trains: bool) -> None:
    x, weight, bias, *settings = node.args
    (y,) = node.outs
    geometry = Geometry.of(x, weight, y, *settings)
    geometry = geometry and replace(geometry, trains=trains)
    if geometry is None or not (geometry.is_pointwise or geometry.has_many_weights):
        nodes.nodes.append(node)
        return
    factors = seen_by_places(geometry, nodes, known), transposed(as_matrix(weight, nodes, known))
    result = nodes.new(x, geometry.places, weight.size[0])
    if bias is None:
        nodes.product(*factors, result)
    else:
        nodes.add("aten::addmm", (bias, *factors, Number(1), Number(1)), result)
    nodes.copy(channels_last(result, geometry.y.size), geometry.y)


def _backward(node: Node, nodes: Nodes, known: Known) -> None:
    grad, x, weight, *rest = node.args
    _, *settings, _ = rest
    grad_x, grad_weight, grad_bias = node.outs
    geometry = Geometry.of(x, weight, grad, *settings)
    if geometry is None or not (geometry.is_pointwise or geometry.has_many_weights):
        nodes.nodes.append(node)
        return
    rows = by_places(grad, nodes)
    if grad_bias is not None:
        nodes.add("aten::sum.dim_IntList", (rows, [Number(0)], Number(False), None), grad_bias)
    if grad_weight is not None:
        product = nodes.product(transposed(rows), seen_by_places(geometry, nodes, known))
        nodes.copy(contiguous(product, weight.size), grad_weight)
    if grad_x is not None:
        _put_back(geometry, nodes.product(rows, as_matrix(weight, nodes, known)), grad_x, nodes)


def seen_by_places(geometry: Geometry, nodes: Nodes, known: Known) -> Region:
    """What each place sees of `x`, as a matrix of (places, channels and kernel)."""
    if geometry.is_pointwise:
        return by_places(geometry.read_places(geometry.x), nodes)
    x, looks = geometry.x, geometry.looks
    if (matrix := known.get((x, looks))) is None:
        matrix = known[x, looks] = nodes.new(x, geometry.places, prod(geometry.weight.size[1:]))
        nodes.add("aten::im2col", (x, *map(list, looks)), by_image(matrix, x))
    return matrix


def _put_back(geometry: Geometry, seen: Region, out: Region, nodes: Nodes) -> None:
    """Adds up what the places give to each element of `x` that they see, from a matrix as `seen_by_places` makes it."""
    if not geometry.is_pointwise:
        nodes.add("aten::col2im", (by_image(seen, out), list(out.size[2:]), *map(list, geometry.looks)), out)
        return
    inside = geometry.read_places(out)
    if inside.numel < out.numel:
        nodes.add(FILL, (out, Number(0)), out)
    nodes.copy(channels_last(seen, inside.size), inside)


def by_image(matrix: Region, x: Region) -> Region:
    """A matrix of (places, channels and kernel) as (images, channels and kernel, places of an image)."""
    return channels_last(matrix, (x.size[0], matrix.size[1], matrix.size[0] // x.size[0]))
