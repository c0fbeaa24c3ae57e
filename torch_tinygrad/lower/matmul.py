"""Matrix and vector products, and the accumulation rule (`accumulator`, `product_operands`) that contractions share."""

from __future__ import annotations

import torch
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

from torch_tinygrad.kernels.arrays import cast
from torch_tinygrad.target import target

from .registry import is_number, lowers

aten = torch.ops.aten
HALVES = (dtypes.float16, dtypes.bfloat16)
# Every tensor core tinygrad knows has sides that divide this.
TENSOR_CORE_SIDE = 16


def accumulator(dtype: DType) -> DType:
    """What sums of products are kept in: exact modulo the type for integers, single precision for half types."""
    if dtype in HALVES:
        return dtypes.float32
    if dtype == dtypes.bool or (dtypes.is_int(dtype) and dtype.itemsize < 4):
        return dtypes.int32
    return dtype


def product_operands(a: Tensor, b: Tensor, *sides: int) -> tuple[Tensor, Tensor]:
    """The operands in the type to multiply them in. A product of half types is exact in float32 and rounds in its own
    type, but tensor cores take half operands (and keep the product exact): those stay where a core will be used."""
    if (
        a.dtype in HALVES
        and all(s % TENSOR_CORE_SIDE == 0 for s in sides)
        and target(a.device).has_tensor_core(a.dtype)
    ):
        return a, b
    kept = accumulator(a.dtype)
    return a.cast(kept), b.cast(kept)


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` over the last two dimensions, in the accumulator's type."""
    kept = accumulator(a.dtype)
    a, b = product_operands(a, b, a.shape[-2], a.shape[-1], b.shape[-1])
    return (a.unsqueeze(-2) * b.transpose(-1, -2).unsqueeze(-3)).sum(-1, dtype=kept)


def scaled(value: Tensor, factor, kept: DType) -> Tensor:
    """`factor * value`, where a factor of zero means that the value is not looked at (nan included)."""
    value = value.cast(kept)
    if is_number(factor):
        factor = whole(factor, kept)
        return value if factor == 1 else value * factor if factor != 0 else value.const_like(0)
    factor = cast(factor, kept)
    return (factor == 0).where(value.const_like(0), value * factor)


def whole(factor, kept: DType):
    """A factor of integers loses its fraction first."""
    return int(factor) if is_number(factor) and dtypes.is_int(kept) else factor


def times(value: Tensor, factor) -> Tensor:
    factor = whole(factor, value.dtype)
    return value if is_number(factor) and factor == 1 else value * cast(factor, value.dtype)


def multiple(product: Tensor, alpha, dtype: DType) -> Tensor:
    """`alpha * product` of factors of a type. BLAS does not look at them where alpha is zero; PyTorch's own loops for
    half types do."""
    return times(product, alpha) if dtype in HALVES else scaled(product, alpha, product.dtype)


@lowers(aten.mm.default, aten.bmm.default)
def matrix_product(a: Tensor, b: Tensor) -> Tensor:
    return product(a, b)


@lowers(aten.mm.dtype, aten.bmm.dtype)
def matrix_product_into(a: Tensor, b: Tensor, out_dtype) -> Tensor:
    return product(a, b)


@lowers(aten.mv.default)
def matrix_vector(matrix: Tensor, vector: Tensor) -> Tensor:
    return product(matrix, vector.unsqueeze(1)).squeeze(1)


@lowers(aten.dot.default, aten.vdot.default)
def vector_vector(a: Tensor, b: Tensor) -> Tensor:
    kept = accumulator(a.dtype)
    return (a.cast(kept) * b.cast(kept)).sum(dtype=kept)


@lowers(aten.addmm.default, aten.baddbmm.default, lifts=("beta", "alpha"))
def add_matrix_product(bias: Tensor, a: Tensor, b: Tensor, *, beta=1, alpha=1) -> Tensor:
    result = multiple(product(a, b), alpha, a.dtype)
    return result + scaled(bias, beta, result.dtype)


@lowers(aten.addbmm.default, lifts=("beta", "alpha"))
def add_batch_sum(bias: Tensor, a: Tensor, b: Tensor, *, beta=1, alpha=1) -> Tensor:
    batch, rows, inner = a.shape
    columns = b.shape[2]
    long = product(a.transpose(0, 1).reshape(rows, batch * inner), b.reshape(batch * inner, columns))
    return multiple(long, alpha, a.dtype) + scaled(bias, beta, long.dtype)


@lowers(aten.addmv.default, lifts=("beta", "alpha"))
def add_matrix_vector(bias: Tensor, matrix: Tensor, vector: Tensor, *, beta=1, alpha=1) -> Tensor:
    result = multiple(matrix_vector(matrix, vector), alpha, matrix.dtype)
    return result + scaled(bias, beta, result.dtype)


@lowers(aten.addr.default, lifts=("beta", "alpha"))
def add_outer_product(bias: Tensor, a: Tensor, b: Tensor, *, beta=1, alpha=1, meta=None) -> Tensor:
    """Half types round factors and every product."""
    kept, result = accumulator(meta[0].tiny), meta[0].tiny

    def rounded(value):
        if is_number(value):
            return torch.tensor(value, dtype=meta[0].dtype).item() if result in HALVES else value
        return value.cast(result).cast(kept)

    alpha, beta = rounded(alpha), rounded(beta)

    a, b = a.cast(kept).unsqueeze(1), b.cast(kept).unsqueeze(0)
    outer = times(a, alpha)
    return rounded(rounded(outer) * b) + rounded(scaled(bias, beta, kept))


# Sums of half-precision products that PyTorch adds up one by one are, up to this many.
ROUNDED_SUMS = 64


@lowers(aten._trilinear.default)
def trilinear(a, b, c, expand1, expand2, expand3, sumdim, unroll_dim=1, *, meta):
    """The product of three tensors, each with dimensions of size 1 put in, summed: first over those that the third does
    not have, and rounded in between, as the CPU does it."""
    dtype, kept = meta[0].tiny, accumulator(meta[0].tiny)

    def widened(tensor: Tensor, added: list[int]) -> Tensor:
        for dim in added:
            tensor = tensor.unsqueeze(dim)
        return tensor.cast(kept)

    def contracted(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        early, late = (tuple(d for d in sumdim if (d in expand3) is first) for first in (True, False))
        pair = a * b
        if early:
            pair = pair.sum(early, keepdim=True, dtype=kept).cast(dtype).contiguous().cast(kept)
        product = pair * c
        return product.sum(late, keepdim=True, dtype=kept) if late else product

    tensors = [widened(t, added) for t, added in ((a, expand1), (b, expand2), (c, expand3))]
    count = max(t.shape[unroll_dim] for t in tensors)
    if dtype not in HALVES or unroll_dim not in sumdim or count > ROUNDED_SUMS:
        return contracted(*tensors).reshape(meta[0].shape)

    def part(tensor: Tensor, at: int) -> Tensor:
        window = (at, at + 1) if tensor.shape[unroll_dim] > 1 else None
        return tensor.shrink(tuple(window if d == unroll_dim else None for d in range(tensor.ndim)))

    total = None
    for at in range(count):
        added = contracted(*(part(t, at) for t in tensors)).cast(dtype)
        total = added if total is None else (total.cast(kept) + added.cast(kept)).cast(dtype)
    return total.reshape(meta[0].shape)
