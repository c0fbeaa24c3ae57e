"""What passes know about operators: which are pointwise, and which are only a fill or a copy under another name."""

from __future__ import annotations

from functools import cache

import torch

from torch_tinygrad.trace.nodes import Node, Number, Region, reads

FILL, COPY = "aten::fill.Scalar", "aten::copy"

# The argument that holds the value, or the constant itself.
_FILLS: dict[str, int | Number] = {
    FILL: 1,
    "aten::full": 1,
    "aten::full_like": 1,
    "aten::new_full": 2,
    "aten::scalar_tensor": 0,
    "aten::zero": Number(0),
    "aten::zeros": Number(0),
    "aten::zeros_like": Number(0),
    "aten::new_zeros": Number(0),
    "aten::ones": Number(1),
    "aten::ones_like": Number(1),
    "aten::new_ones": Number(1),
}
_COPIES: dict[str, int] = {COPY: 1, "aten::fill.Tensor": 1, "aten::clone": 0, "aten::_to_copy": 0}
_NOT_ELEMENT_BY_ELEMENT = {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output}


@cache
def is_pointwise(op: str) -> bool:
    """Whether element i of every result depends on element i of the broadcast arguments alone."""
    if op in _FILLS or op in _COPIES:
        return True
    namespace, _, name = op.partition("::")
    packet, _, overload = name.partition(".")
    try:
        tags = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default").tags
    except AttributeError:
        return False
    return torch.Tag.pointwise in tags and not _NOT_ELEMENT_BY_ELEMENT & set(tags)


def canonical(node: Node) -> Node:
    """Fills become `aten::fill.Scalar(out, number)`, conversions and copies `aten::copy(out, source, False)`: the value
    is broadcast to the shape of `out` and converted to its dtype, and `out` itself is not read."""
    value = _FILLS.get(node.op)
    if value is not None:
        return Node(FILL, (node.outs[0], node.args[value] if isinstance(value, int) else value), node.outs, node.origin)
    source = _COPIES.get(node.op)
    if source is None:
        return node
    if not isinstance(node.args[source], Region):
        return Node(FILL, (node.outs[0], node.args[source]), node.outs, node.origin)
    return Node(COPY, (node.outs[0], node.args[source], False), node.outs, node.origin)


def value_reads(node: Node):
    """The regions whose values a node needs: what it takes only a shape from is left out."""
    if node.op in _FILLS:
        return ()
    if node.op in _COPIES:
        return reads(Node(node.op, (node.args[_COPIES[node.op]],), ()))
    return reads(node)
