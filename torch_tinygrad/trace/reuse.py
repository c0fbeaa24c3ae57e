"""Which results several kernels would each compute for themselves.

tinygrad fuses what is computed element by element into every kernel that reads it. Where the paths from a result to
those kernels part, storing it once may be cheaper; whether it is, the lowering decides from what it costs to compute.
"""

from __future__ import annotations

from collections.abc import Callable

from .geometry import covers
from .nodes import Node, Trace
from .pointwise import is_pointwise, value_reads

# Not pointwise, and yet computed inside the kernels that read them.
_FUSING = {
    "aten::cat", "aten::stack", "aten::constant_pad_nd", "aten::tril", "aten::triu", "aten::flip", "aten::roll",
    "aten::select_backward", "aten::slice_backward", "aten::diagonal_backward", "aten::_thnn_fused_lstm_cell",
    "aten::_thnn_fused_lstm_cell_backward_impl", "aten::_thnn_fused_gru_cell", "aten::_thnn_fused_gru_cell_backward",
    "aten::embedding", "aten::index_select", "aten::gather", "aten::native_dropout_backward",
}  # fmt: skip

# What reads its argument once for statistics and again for the result.
_SEVERAL_PASSES = {
    "aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::native_batch_norm",
    "aten::native_batch_norm_backward", "aten::native_group_norm", "aten::native_group_norm_backward",
    "aten::_native_batch_norm_legit", "aten::_fused_rms_norm", "aten::_fused_rms_norm_backward", "aten::_softmax",
    "aten::_log_softmax", "aten::_safe_softmax", "aten::_softmax_backward_data", "aten::_log_softmax_backward_data",
    "aten::var.correction", "aten::std.correction", "aten::var_mean.correction", "aten::std_mean.correction",
    "aten::logsumexp", "aten::cudnn_batch_norm",
}  # fmt: skip

_BITS = 4096  # kernels are told apart by this many bits: a clash makes a worse guess, not a wrong result


def shared_results(trace: Trace, is_step: Callable[[Node], bool], passes: int) -> set[tuple[int, int]]:
    """(number of the node, number of the result) of results that kernels of different fates read. `is_step` tells
    nodes that run on their own and read stored arguments; `passes` says as how many kernels a sum counts."""
    # For each storage, the kernels that each later read of its present value ends in, as bits.
    ends: list[list[int]] = [[_bit(-1 - s)] if storage.live else [] for s, storage in enumerate(trace.storages)]
    found: set[tuple[int, int]] = set()
    for t in range(len(trace.nodes) - 1, -1, -1):
        node = trace.nodes[t]
        after: list[int] = []
        for k, out in enumerate(node.outs):
            if out is None:
                continue
            paths = ends[out.storage]
            union = 0
            for path in paths:
                union |= path
            if any(path != union for path in paths):
                found.add((t, k))
                union = _bit(t * 8 + k)
            after.append(union)
            count = trace.storages[out.storage].nbytes // out.dtype.itemsize
            if out.moves < 0 and covers(count, out.size, out.stride, out.offset):
                ends[out.storage] = []
        if not is_step(node) and (is_pointwise(node.op) or node.op in _FUSING):
            reached = list(dict.fromkeys(after))
        else:
            reached = [_bit(t * 8 + i) for i in range(2 if node.op in _SEVERAL_PASSES else passes)]
        for region in value_reads(node):
            paths = ends[region.storage]
            paths.extend(path for path in reached if path not in paths)
    return found


def _bit(number: int) -> int:
    return 1 << (number * 2654435761 % _BITS)
