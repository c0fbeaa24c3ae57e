"""What is added to a matrix product is left to the kernels that read the sum.

A library copies it into the result before it multiplies; a kernel adds it on the way, with whatever follows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .adding import Nodes
from .nodes import Node, Number, Trace

PRODUCTS = {"aten::addmm": "aten::mm", "aten::baddbmm": "aten::bmm"}


def without_addends(trace: Trace, calls_library: Callable[[Node], bool]) -> Trace:
    """The trace with products that a library computes on their own. Half types stay: they are rounded once, after the
    sum."""
    nodes: list[Node] = []
    for node in trace.nodes:
        if node.op not in PRODUCTS or not _is_plain_sum(node) or not calls_library(node):
            nodes.append(node)
            continue
        (addend, a, b, *_), out = node.args, node.outs[0]
        assert out is not None
        added = Nodes(nodes, trace.storages, node.origin)
        product = added.new(out, *out.size)
        added.add(PRODUCTS[node.op], (a, b), product)
        added.add("aten::add.Tensor", (product, addend, Number(1)), out)
    return Trace(nodes, trace.storages, trace.numbers)


def _is_plain_sum(node: Node) -> bool:
    is_scaled = any(not isinstance(factor, Number) or factor.value != 1 for factor in node.args[3:5])
    return node.args[0].dtype in (torch.float32, torch.float64) and not is_scaled
