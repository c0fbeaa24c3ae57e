"""Products, variances and norms of complex numbers: reductions that mix the parts."""

from __future__ import annotations

import torch
from tinygrad import Tensor

from . import maths as m
from .complex import Complex, as_complex, lowers_complex
from .maths import widen
from .matmul import product as real_product
from .matmul import scaled as scaled_real
from .reduce import axes_of, total
from .registry import is_number
from .statistics import variance, vector_norm

aten = torch.ops.aten


# ---- products along a dimension ----


def _slice(z: Complex, low: int, high: int) -> Complex:
    """Elements low .. high of the last dimension."""
    return z.map(lambda part: part.shrink((*((0, s) for s in part.shape[:-1]), (low, high))))


def _ones_around(z: Complex, before: int, after: int) -> Complex:
    """The last dimension with ones put before and after it."""
    pad = (*(None for _ in z.shape[:-1]), (before, after))
    return Complex(z.re.pad(pad, value=1.0), z.im.pad(pad))


def multiplied(z: Complex) -> Complex:
    """The product of the last dimension, by halves."""
    while (length := z.shape[-1]) > 1:
        half = (length + 1) // 2
        z = (_slice(z, 0, half) * _ones_around(_slice(z, half, length), 0, 2 * half - length)).map(Tensor.contiguous)
    return z.map(lambda part: part.squeeze(-1))


def _last(z: Complex, axis: int) -> Complex:
    return z.map(lambda part: part.transpose(axis, -1))


@lowers_complex(aten.prod.default)
def prod_all(z, *, meta):
    z = as_complex(z, widen(meta[0].tiny))
    return multiplied(z.map(lambda part: part.flatten())) if 0 not in z.shape else as_complex(1, z.dtype)


@lowers_complex(aten.prod.dim_int)
def prod_dim(z, dim, keepdim=False, *, meta):
    z = as_complex(z, widen(meta[0].tiny))
    if not z.ndim:
        return z
    if 0 in z.shape:
        return as_complex(m.constant(1, z.dtype, meta[0].shape))
    axis = dim % z.ndim
    order = (*(d for d in range(z.ndim) if d != axis), axis)
    return multiplied(z.map(lambda part: part.permute(order))).map(lambda part: part.reshape(meta[0].shape))


@lowers_complex(aten.cumprod.default)
def cumprod(z, dim, *, meta):
    """Each step multiplies by what lies a power of two before."""
    z = as_complex(z, m.widest_float())
    if not z.ndim or 0 in z.shape:
        return z
    z = _last(z, dim % z.ndim)
    length, reach = z.shape[-1], 1
    while reach < length:
        z = (z * _slice(_ones_around(z, reach, 0), 0, length)).map(Tensor.contiguous)
        reach *= 2
    return _last(z, dim % z.ndim)


# ---- sums ----


@lowers_complex(aten.nansum.default)
def nansum(z, dim=None, keepdim=False, *, meta):
    missing = z.re.isnan() | z.im.isnan()
    return z.map(lambda part: total(missing.where(0, part), axes_of(part, dim), keepdim, meta[0].tiny))


def _spread(z, dim, correction, keepdim: bool, meta, mean_too: bool, root: bool):
    """The variance of a complex variable is the sum of its parts' variances."""
    z = as_complex(z, widen(meta[0].tiny))
    (re, re_mean), (im, im_mean) = (variance(part, dim, correction, keepdim) for part in (z.re, z.im))
    spread = (re + im).sqrt() if root else re + im
    return (spread, Complex(re_mean, im_mean)) if mean_too else spread


for _overload, _mean_too, _root in (
    (aten.var.correction, False, False),
    (aten.std.correction, False, True),
    (aten.var_mean.correction, True, False),
    (aten.std_mean.correction, True, True),
):

    @lowers_complex(_overload)
    def spread(z, dim=None, *, meta, correction=None, keepdim=False, mean_too=_mean_too, root=_root):
        return _spread(z, dim, correction, keepdim, meta, mean_too, root)


def _norm(z, order, dim, keepdim: bool, meta) -> Tensor:
    dtype = widen(meta[0].tiny)
    return vector_norm(z.cast(dtype).abs() if isinstance(z, Complex) else z.cast(dtype), order, dim, keepdim)


@lowers_complex(aten.linalg_vector_norm.default)
def linalg_vector_norm(z, order=2, dim=None, keepdim=False, *, meta):
    return _norm(z, order, dim, keepdim, meta)


@lowers_complex(aten.norm.Scalar, aten.norm.ScalarOpt_dtype)
def norm_all(z, p=2, *, meta):
    return _norm(z, p, None, False, meta)


@lowers_complex(aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype)
def norm_dim(z, p, dim, keepdim=False, *, meta):
    return _norm(z, p, dim, keepdim, meta)


@lowers_complex(aten.dist.default)
def dist(a, b, p=2, *, meta):
    dtype = widen(meta[0].tiny)
    return _norm(as_complex(a, dtype) + -as_complex(b, dtype), p, None, False, meta)


# ---- matrix products ----


def product(a: Complex, b: Complex) -> Complex:
    """`a @ b` over the last two dimensions."""
    return Complex(
        real_product(a.re, b.re) - real_product(a.im, b.im), real_product(a.re, b.im) + real_product(a.im, b.re)
    )


def _times(z: Complex, factor) -> Complex:
    if isinstance(factor, Tensor):
        return z * factor.cast(z.dtype)
    return z if factor == 1 else z * (as_complex(factor, z.dtype) if isinstance(factor, complex) else float(factor))


def _scaled(z: Complex, factor) -> Complex:
    """`factor * z`, where a factor of zero means that the value is not looked at."""
    if isinstance(factor, complex) and factor != 0:
        return _times(z, factor)
    factor = 0 if is_number(factor) and factor == 0 else factor
    return z.map(lambda part: scaled_real(part, factor, z.dtype))


def _column(z: Complex) -> Complex:
    return z.map(lambda part: part.unsqueeze(-1))


def matrix_vector(a: Complex, b: Complex) -> Complex:
    return product(a, _column(b)).map(lambda part: part.squeeze(-1))


def batch_sum(a: Complex, b: Complex) -> Complex:
    batch, rows, inner = a.shape
    a = a.map(lambda part: part.transpose(0, 1).reshape(rows, batch * inner))
    return product(a, b.map(lambda part: part.reshape(batch * inner, part.shape[2])))


def outer(a: Complex, b: Complex) -> Complex:
    return _column(a) * b.map(lambda part: part.unsqueeze(0))


def inner(a: Complex, b: Complex) -> Complex:
    return (a * b).map(lambda part: part.sum(dtype=part.dtype))


lowers_complex(aten.mm.default, aten.bmm.default)(lambda a, b: product(a, b))
lowers_complex(aten.mv.default)(lambda a, b: matrix_vector(a, b))
lowers_complex(aten.dot.default)(lambda a, b: inner(a, b))
lowers_complex(aten.vdot.default)(lambda a, b: inner(a.conj(), b))

for _overloads, (_compute, _multiple) in {
    (aten.addmm.default, aten.baddbmm.default): (product, _scaled),
    (aten.addbmm.default,): (batch_sum, _scaled),
    (aten.addmv.default,): (matrix_vector, _times),
    (aten.addr.default,): (outer, _times),
}.items():

    @lowers_complex(*_overloads, lifts=("beta", "alpha"))
    def with_bias(bias, a, b, *, beta=1, alpha=1, meta, compute=_compute, multiple=_multiple):
        bias, a, b = (as_complex(v, widen(meta[0].tiny)) for v in (bias, a, b))
        return multiple(compute(a, b), alpha) + _scaled(bias, beta)
