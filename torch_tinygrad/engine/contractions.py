"""Which nodes ATen's CPU kernels compute better than generated code: large contractions, on the CPU."""

from __future__ import annotations

from torch_tinygrad.trace.nodes import Node


def prefers_aten(node: Node) -> bool:
    return False
