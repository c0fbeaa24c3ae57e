"""Reductions made of several: variances, norms, log-sums, counts."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels.threads import before_sum
from torch_tinygrad.lower import elementary as e
from torch_tinygrad.lower import maths as m
from torch_tinygrad.lower.maths import operand, operands, widen, widest_float
from torch_tinygrad.lower.pointwise import float_power
from torch_tinygrad.lower.reduce import LONG_SUM, added, axes_of, count_of, largest, smallest, total
from torch_tinygrad.lower.registry import lowers
from torch_tinygrad.trace.decisions import is_one_of_many

aten = torch.ops.aten


def variance(x: Tensor, dim, correction, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Variance and mean, in two passes."""
    axes = axes_of(x, dim)
    count = count_of(x, axes)
    freedom = max(count - (1 if correction is None else correction), 0)
    mean = added(x, axes, True) / count if count else x.sum(axes, keepdim=True) + m.NAN
    centred = x - mean
    squares = added(centred * centred, axes, keepdim)
    mean = mean if keepdim else mean.reshape(squares.shape)
    return squares * (1 / freedom if freedom else m.INF) if count else squares + m.NAN, mean


@lowers(aten.var.correction, reads_twice=True)
def var(x, dim=None, *, meta, correction=None, keepdim=False):
    return variance(operand(x, widen(meta[0].tiny)), dim, correction, keepdim)[0]


@lowers(aten.std.correction, reads_twice=True)
def std(x, dim=None, *, meta, correction=None, keepdim=False):
    return variance(operand(x, widen(meta[0].tiny)), dim, correction, keepdim)[0].sqrt()


@lowers(aten.var_mean.correction, reads_twice=True)
def var_mean(x, dim=None, *, meta, correction=None, keepdim=False):
    return variance(operand(x, widen(meta[0].tiny)), dim, correction, keepdim)


@lowers(aten.std_mean.correction, reads_twice=True)
def std_mean(x, dim=None, *, meta, correction=None, keepdim=False):
    squared, mean = variance(operand(x, widen(meta[0].tiny)), dim, correction, keepdim)
    return squared.sqrt(), mean


def vector_norm(x: Tensor, order, dim, keepdim: bool) -> Tensor:
    axes = axes_of(x, dim)
    order = 2 if order is None else order
    if not count_of(x, axes) and order >= 0:
        return x.sum(axes, keepdim=keepdim)
    size = m.absolute(x)
    if order == math.inf:
        return largest(size, axes, keepdim)
    if order == -math.inf:
        return smallest(size, axes, keepdim)
    if order == 0:
        return x.ne(0).cast(x.dtype).sum(axes, keepdim=keepdim)
    if order == 1:
        return added(size, axes, keepdim)
    if order == 2:
        return added(x * x, axes, keepdim).sqrt()
    powers = size * size * size if order == 3 else float_power(size, m.constant(order, x.dtype))
    summed = added(powers, axes, keepdim)
    return float_power(summed, m.constant(1 / order, x.dtype))


@lowers(aten.linalg_vector_norm.default)
def linalg_vector_norm(x, order=2, dim=None, keepdim=False, *, meta):
    return vector_norm(operand(x, widen(meta[0].tiny)), order, dim, keepdim)


@lowers(aten.norm.Scalar)
def norm_all(x, p=2, *, meta):
    return vector_norm(operand(x, widen(meta[0].tiny)), p, None, False)


@lowers(aten.norm.ScalarOpt_dtype)
def norm_all_dtype(x, p, *, meta):
    return vector_norm(operand(x, widen(meta[0].tiny)), p, None, False)


@lowers(aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype)
def norm_dim(x, p, dim, keepdim=False, *, meta):
    return vector_norm(operand(x, widen(meta[0].tiny)), p, dim, keepdim)


@lowers(aten.dist.default)
def dist(a, b, p=2, *, meta):
    a, b = operands(widen(meta[0].tiny), a, b)
    return vector_norm(a - b, p, None, False)


@lowers(aten.logsumexp.default, reads_twice=True)
def logsumexp(x, dim, keepdim=False, *, meta):
    x = operand(x, widen(meta[0].tiny))
    axes = axes_of(x, dim)
    if not count_of(x, axes):
        return x.sum(axes, keepdim=keepdim) - m.INF
    top = x.max(axes, keepdim=True)
    top = m.absolute(top).eq(m.INF).where(0.0, top)
    summed = added(before_sum(e.exp(x - top)), axes, keepdim)
    return e.log(summed) + top.reshape(summed.shape)


@lowers(aten.nansum.default)
def nansum(x, dim=None, keepdim=False, *, meta):
    kept = x.isnan().where(0, x) if dtypes.is_float(x.dtype) else x
    return total(kept, axes_of(x, dim), keepdim, meta[0].tiny)


@lowers(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(x, dim=None):
    return x.ne(0).cast(dtypes.int64).sum(axes_of(x, dim), dtype=dtypes.int64)


@lowers(aten.aminmax.default)
def aminmax(x, *, dim=None, keepdim=False):
    axes = axes_of(x, dim)
    return smallest(x, axes, keepdim), largest(x, axes, keepdim)


@lowers(aten.prod.default)
def prod_all(x, *, meta):
    return prod_dim(x, None, meta=meta)


@lowers(aten.prod.dim_int)
def prod_dim(x, dim, keepdim=False, *, meta):
    """Long products of floats in float64, as long sums are."""
    axes = axes_of(x, dim)
    is_long = meta[0].dtype.is_floating_point and not is_one_of_many() and count_of(x, axes) >= LONG_SUM
    x = x.cast(widest_float() if is_long else widen(meta[0].tiny))
    return x.prod(axes, keepdim=keepdim)


@lowers(aten.trace.default)
def trace(x, *, meta):
    side = min(x.shape)
    if not side:
        return m.constant(0, meta[0].tiny)
    return total(x[:side, :side].diagonal(), (0,), False, meta[0].tiny)


@lowers(aten._is_all_true.default)
def is_all_true(x):
    return x.logical_not().max().logical_not()


@lowers(aten._is_any_true.default)
def is_any_true(x):
    return x.max()
