"""Nodes that a pass puts in the place of one."""

from __future__ import annotations

from dataclasses import dataclass

from .geometry import strides_of
from .nodes import Node, Number, Region, Storage


@dataclass
class Nodes:
    """Where they go."""

    nodes: list[Node]
    storages: list[Storage]
    origin: int

    def new(self, like: Region, *size: int) -> Region:
        """A contiguous region in a storage of its own."""
        region = Region(len(self.storages), like.dtype, size, strides_of(size), 0)
        self.storages.append(Storage(region.numel * like.dtype.itemsize, False, False))
        return region

    def add(self, op: str, args: tuple, *outs: Region | None) -> None:
        self.nodes.append(Node(op, args, outs, self.origin))

    def product(self, a: Region, b: Region, out: Region | None = None) -> Region:
        out = out or self.new(a, a.size[0], b.size[1])
        self.add("aten::mm", (a, b), out)
        return out

    def sum(self, a: Region | None, b: Region | None) -> Region | None:
        if a is None or b is None:
            return a or b
        out = self.new(a, *a.size)
        self.add("aten::add.Tensor", (a, b, Number(1)), out)
        return out

    def copy(self, source: Region, out: Region) -> None:
        self.add("aten::copy", (out, source, Number(False)), out)


def transposed(matrix: Region) -> Region:
    return matrix.at(size=matrix.size[::-1], stride=matrix.stride[::-1])
