"""Which convolutions of ATen's run with channels last: oneDNN then reorders no activations, and what surrounds them
loops over channels side by side. Only values that nobody sees after the trace are laid out so.

One thread, milliseconds as recorded → channels last (batch, channels, size → channels, kernel): forward of 64, 1, 28 →
32, 5: 6.1 → 0.9; gradients of 64, 32, 24 → 32, 5: 30.5 → 25.9; of 16, 64, 16 → 64, 3: 5.8 → 5.5. Weights are reordered
in turn, at each call, so that few pixels lose: gradients of 16, 256, 4 → 256, 3: 5.9 → 6.7; of 16, 512, 2 → 512, 3:
9.7 → 31.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from torch_tinygrad.trace.decisions import decide
from torch_tinygrad.trace.geometry import strides_of
from torch_tinygrad.trace.nodes import Node, Region


@dataclass(frozen=True)
class Convolution:
    """The arguments and results of a convolution that are activations; the first argument is the input."""

    activations: tuple[int, ...]
    weight: int
    transposed: int


# A usual kernel's elements: with the weights' own, neighbours that share an activation would disagree.
KERNEL = 9

CONVOLUTIONS = {
    "aten::convolution": Convolution((0,), 1, 6),
    "aten::convolution_backward": Convolution((1, 0), 2, 7),
}


def order_of(rank: int) -> tuple[int, ...]:
    """The dimensions as they lie in memory with channels last, slowest first."""
    return (0, *range(2, rank), 1)


def strides_in(size: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a dense tensor whose dimensions lie in this order."""
    dense = strides_of(tuple(size[d] for d in order))
    return tuple(dense[order.index(d)] for d in range(len(size)))


def is_same_layout(size: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(n == 1 or s == t for n, s, t in zip(size, a, b, strict=True))


def activations_of(node: Node) -> tuple[int, ...]:
    """The arguments that had better have channels last: the input first, or none."""
    found = CONVOLUTIONS.get(node.op)
    if found is None or node.args[found.transposed]:
        return ()
    regions = [node.args[i] for i in found.activations]
    if len(regions[0].size) not in (4, 5) or regions[0].dtype is not torch.float32:
        return ()
    others = [node.outs[0]] if len(regions) == 1 else []
    moved = sum(r.numel for r in (*regions, *others))
    is_worth_it = decide("channels last", moved >= KERNEL * prod(node.args[found.weight].size[:2]))
    return found.activations if is_worth_it else ()


def weight_of(node: Node) -> int:
    """The argument that is the weights."""
    return CONVOLUTIONS[node.op].weight


def is_small_part(region: Region, node: Node) -> bool:
    """Whether copying this activation costs little beside the convolution's others."""
    others = [r for r in (*node.args[:2], node.outs[0]) if isinstance(r, Region)]
    return decide("small activation", 4 * region.numel <= max(r.numel for r in others))
