"""Which nodes ATen's CPU kernels compute better than generated code: large contractions, where memory is the host's.

tinygrad's CPU kernels reach about a tenth of oneDNN's and MKL's rate on these; below the bounds here a kernel that
fuses with its neighbours is cheaper than a step of its own.
"""

from __future__ import annotations

from math import prod

import torch

from torch_tinygrad.lower.fourier import SHORT
from torch_tinygrad.target import target
from torch_tinygrad.trace.decisions import decide
from torch_tinygrad.trace.nodes import Node, Region, plain

# Multiplications below which a contraction is left to fuse.
SMALL = 1 << 15
# The same of one row by a matrix whose rows lie in memory: one thread, microseconds by ATen → by a kernel: 256 x 256:
# 10.3 → 8.6, 128 x 512: 10.2 → 9.9, 512 x 512: 56 → 28.
SMALL_ROW = 1 << 19
# Products that a filter sums up for one result: of any kind, of several channels into few, and into one.
FEW, FEW_OF_CHANNELS, FEW_CHANNELS, FEW_INTO_ONE = 12, 32, 32, 144

NUMBERS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)


def _matmul_work(a: Region, b: Region) -> int:
    return prod(a.size) * b.size[-1]


def _convolution_work(out: Region, weight: Region) -> int:
    return prod(out.size) * prod(weight.size[1:])


def _attention_work(query: Region, key: Region) -> int:
    return 2 * query.numel * key.size[2]


def _transform_work(args, outs) -> int:
    """Of a Fourier transform: one that splits into several takes as many kernels, and counts as large."""
    sizes = [max(r.size[getattr(d, "value", d)] for r in (args[0], outs[0])) for d in args[1]]
    return SMALL if max(sizes, default=0) > SHORT else outs[0].numel * sum(sizes)


def _matrix_work(args, outs) -> int:
    """Of a factorisation or a system: one matrix's. Many small ones are one kernel, where LAPACK takes them in turn."""
    return max(a.size[-1] for a in args if isinstance(a, Region)) ** 3


# Computed from one factorisation or substitution after another, where LAPACK works in blocks.
MATRICES = (
    "linalg_lu_factor_ex", "linalg_lu_solve", "linalg_lu", "_linalg_det", "_linalg_slogdet", "linalg_inv_ex",
    "_linalg_solve_ex", "linalg_solve_triangular", "triangular_solve", "linalg_cholesky_ex", "cholesky",
    "_cholesky_solve_helper", "cholesky_inverse", "geqrf", "linalg_qr", "linalg_householder_product", "ormqr",
    "linalg_matrix_exp",
)  # fmt: skip

# Exponentials of many elements: ATen's are vectorised, and it computes each once. On a GPU ours fuse, but read rows
# twice that do not fit into a group's memory (4096 x 50304 on an H200: 1.03 ms, ATen 0.82).
LONG_ROW = 1 << 14
EXPONENTIALS = {"aten::_softmax", "aten::_log_softmax"}

# For each operator, its multiplications from (arguments, results).
WORK = {
    "aten::mm": lambda args, outs: _matmul_work(args[0], args[1]),
    "aten::bmm": lambda args, outs: _matmul_work(args[0], args[1]),
    "aten::addmm": lambda args, outs: _matmul_work(args[1], args[2]),
    "aten::baddbmm": lambda args, outs: _matmul_work(args[1], args[2]),
    "aten::convolution": lambda args, outs: _convolution_work(outs[0], args[1]),
    "aten::convolution_backward": lambda args, outs: _convolution_work(args[0], args[2]),
    "aten::_trilinear": lambda args, outs: outs[0].numel * prod(args[1].size[1:]),
    "aten::_scaled_dot_product_flash_attention_for_cpu": lambda args, outs: _attention_work(args[0], args[1]),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": lambda args, outs: _attention_work(args[1], args[2]),
    "aten::_fft_c2c": _transform_work,
    "aten::_fft_r2c": _transform_work,
    "aten::_fft_c2r": _transform_work,
    **{f"aten::{name}": _matrix_work for name in MATRICES},
}


# What the library of a GPU computes better than generated code, from so many elements of the first argument on: sorts,
# scans and selections, sums that have few results or run across rows, and what is made of such. Not batch norm: one run
# with it among these took longer (H200, the demo's network: 7.1 ms a step instead of 4.5), though it was not alone new.
MANY = 1 << 14
SELECTIONS = {
    "aten::sort", "aten::sort.stable", "aten::topk", "aten::kthvalue", "aten::median.dim", "aten::cumsum",
    "aten::cumprod", "aten::nonzero_static", "aten::argmax", "aten::argmin", "aten::max.dim", "aten::min.dim",
    "aten::index_select", "aten::index_add", "aten::scatter_add", "aten::embedding_dense_backward",
    "aten::nll_loss_forward", "aten::native_layer_norm_backward",
}  # fmt: skip


def can_be_captured(op: str) -> bool:
    """Whether a CUDA graph can hold the step: it does not wait for the device, nor asks it for values. LAPACK's do; of
    operators that are no contraction and no selection it is not known."""
    waits = {f"aten::{name}" for name in MATRICES} | {"aten::nonzero_static", "aten::kthvalue", "aten::median.dim"}
    return op not in waits and (op in WORK or op in SELECTIONS or op in EXPONENTIALS or op == "aten::sum.dim_IntList")


def _sums_across(node: Node) -> bool:
    """Whether a sum leaves the last dimension: generated code gives each result to one thread."""
    x, dims = node.args[0], node.args[1]
    last = len(x.size) - 1
    return bool(dims) and x.numel >= MANY and last not in {plain(d) % (last + 1) for d in dims}


def _prefers_selections(node: Node) -> bool:
    if node.op == "aten::sum.dim_IntList":
        return _sums_across(node)
    return node.op in SELECTIONS and node.args[0].numel >= MANY


def _is_filter(node: Node) -> bool:
    """A convolution that sums up few products for a result, or leaves one channel: oneDNN computes blocks of channels,
    most of which are not there. One thread, microseconds by oneDNN → by a kernel (batch, channels, size → channels,
    kernel): 1, 1, 128 → 1, 3: 102 → 22; 1, 1, 512 → 1, 3: 2700 → 220; 8, 1, 28 → 8, 3: 284 → 42; 16, 3, 32 → 16, 1: 422
    → 92; 1, 16, 64 → 1, 3: 579 → 170; 8, 3, 32 → 16, 3: 497 → 352; 2, 3, 64 → 16, 3: 499 → 337; 1, 3, 128 → 16, 3:
    1019 → 668; 16, 3, 32 → 32, 3: 1912 → 1392, though 1, 3, 64 → 8, 3: 65 → 87. And as they are: 8, 16, 16 → 16, 3: 418
    → 970; 8, 16, 16 → 32, 1: 48 → 66."""
    if node.op != "aten::convolution":
        return False
    weight, transposed, groups = node.args[1], plain(node.args[6]), plain(node.args[8])
    products = prod(weight.size[1:])
    into, of = weight.size[:2]
    is_wide = of > 1 and prod(weight.size[2:]) > 1
    is_few = products <= FEW or (is_wide and products <= FEW_OF_CHANNELS and into <= FEW_CHANNELS)
    return not transposed and groups == 1 and (is_few or (into == 1 and products <= FEW_INTO_ONE))


def _softmax_length(node: Node) -> int:
    size = node.args[0].size
    return size[plain(node.args[1])] if size else 1


def _wraps_far(node: Node) -> bool:
    """A power of integers wider than a byte. Odd numbers wrap to others however large the exponent, and squaring as
    often as it has bits is more than one expression can hold."""
    if node.op not in ("aten::pow.Tensor_Tensor", "aten::pow.Scalar"):
        return False
    dtype = node.outs[0].dtype
    return not dtype.is_floating_point and not dtype.is_complex and dtype.itemsize > 1


def prefers_aten(node: Node) -> bool:
    here = target()
    if not here.library:
        return False
    if _wraps_far(node):
        return True
    if not here.shares_host_memory and (node.op in EXPONENTIALS or _prefers_selections(node)):
        return node.op not in EXPONENTIALS or _softmax_length(node) >= LONG_ROW
    if node.op in EXPONENTIALS:
        return node.outs[0].dtype is torch.float32 and decide("step", node.outs[0].numel >= SMALL)
    work = WORK.get(node.op)
    if work is None or (here.shares_host_memory and _is_filter(node)):
        return False
    regions = [a for a in node.args if isinstance(a, Region)]
    if any(r.dtype not in NUMBERS for r in regions):
        return False
    is_row = node.op == "aten::mm" and node.args[0].size[0] == 1 and node.args[1].stride[1] == 1
    return decide("step", work(node.args, node.outs) >= (SMALL_ROW if is_row else SMALL))
