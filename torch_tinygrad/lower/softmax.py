"""The softmax family, shifted by the maximum so that no exponential overflows."""

from __future__ import annotations

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels import rows
from torch_tinygrad.kernels.threads import before_sum
from torch_tinygrad.lower import elementary as e
from torch_tinygrad.lower import maths as m
from torch_tinygrad.lower.maths import widen
from torch_tinygrad.lower.reduce import added, axes_of
from torch_tinygrad.lower.registry import TO_TINY, lowers

aten = torch.ops.aten


def exponentials(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """x less its maximum, the exponentials of that, and their sum."""
    shifted = x - x.max(dim, keepdim=True)
    powers = before_sum(e.exp(shifted))
    return shifted, powers, added(powers, axes_of(powers, dim), True)


@lowers(aten._softmax.default, reads_twice=True)
def softmax(x, dim, half_to_float):
    if x.ndim and dim % x.ndim == x.ndim - 1 and rows.worth(x, 1):
        return rows.softmax(x, dtypes.float32 if half_to_float else x.dtype)
    x = x.cast(widen(x.dtype))
    if x.ndim == 0:
        return x * 0.0 + 1.0
    _, powers, summed = exponentials(x, dim)
    return powers / summed


@lowers(aten._log_softmax.default, reads_twice=True)
def log_softmax(x, dim, half_to_float):
    if x.ndim and dim % x.ndim == x.ndim - 1 and rows.worth(x, 1):
        return rows.log_softmax(x, dtypes.float32 if half_to_float else x.dtype)
    x = x.cast(widen(x.dtype))
    if x.ndim == 0:
        return x * 0.0
    shifted, _, summed = exponentials(x, dim)
    return shifted - e.log(summed)


@lowers(aten._softmax_backward_data.default, reads_twice=True)
def softmax_backward(gradient, output, dim, input_dtype):
    gradient, output = (t.cast(widen(t.dtype)) for t in (gradient, output))
    if output.ndim == 0:
        return output * 0.0
    weighted = gradient * output
    return weighted - output * weighted.sum(dim, keepdim=True)


@lowers(aten._log_softmax_backward_data.default, reads_twice=True)
def log_softmax_backward(gradient, output, dim, input_dtype):
    gradient, output = (t.cast(widen(t.dtype)) for t in (gradient, output))
    if output.ndim == 0:
        return output * 0.0
    return gradient - e.exp(output) * gradient.sum(dim, keepdim=True)


@lowers(aten._safe_softmax.default, reads_twice=True)
def safe_softmax(x, dim, dtype=None):
    """Rows that are -inf throughout become zeros."""
    x = x.cast(widen(TO_TINY[dtype] if dtype else x.dtype))
    if x.ndim == 0:
        return x.eq(-m.INF).where(0.0, 1.0)
    empty = x.max(dim, keepdim=True).eq(-m.INF)
    return empty.where(0.0, softmax(x, dim, False))
