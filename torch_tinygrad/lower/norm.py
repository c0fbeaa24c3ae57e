"""Normalisations over batches, layers and groups, with their gradients, computed in single precision for half types."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor
from tinygrad.dtype import DType

from ..kernels import rows
from .matmul import accumulator
from .registry import lowers

aten = torch.ops.aten


def wide(value: Tensor) -> Tensor:
    return value.cast(accumulator(value.dtype))


def summed(x: Tensor, axes: tuple[int, ...], dtype: DType) -> Tensor:
    """The sum over `axes`, kept as 1. Over the batch and what lies behind the channels it runs in two passes: one
    accumulator over all of them would lose two digits, and leave tinygrad few rows to run in parallel."""
    behind = tuple(a for a in axes if a > 1)
    if axes[0] != 0 or not behind or x.shape[0] == 1 or math.prod(x.shape[a] for a in behind) < 16:
        return x.sum(axes, keepdim=True, dtype=dtype)
    return x.sum(behind, keepdim=True, dtype=dtype).contiguous().sum(0, keepdim=True, dtype=dtype)


def statistics(x: Tensor, axes: tuple[int, ...], kept: DType) -> tuple[Tensor, Tensor, int]:
    """Mean and biased variance over `axes` (kept as 1), and over how many elements."""
    count = math.prod(x.shape[a] for a in axes)
    mean = summed(x, axes, kept) / max(count, 1)
    difference = x - mean
    return mean, summed(difference * difference, axes, kept) / max(count, 1), count


def channels(value: Tensor, rank: int) -> Tensor:
    return value.reshape(1, -1, *(1,) * (rank - 2))


def per_channel_axes(x: Tensor) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        x = x * weight.cast(x.dtype)
    return x if bias is None else x + bias.cast(x.dtype)


def batch_norm(x, weight, bias, running_mean, running_var, training: bool, momentum, eps, meta) -> tuple[Tensor, ...]:
    """Output, saved mean, saved inverse deviation, new running mean, new running variance. The output is made with the
    mean and deviation as they are saved, rounded to half where the parameters are."""
    x = wide(x)
    kept, rank = x.dtype, x.ndim
    if training:
        mean, var, count = statistics(x, per_channel_axes(x), kept)
        mean, var = mean.reshape(-1), var.reshape(-1)
        if running_mean is not None:
            running_mean = running_mean * (1 - momentum) + mean.cast(running_mean.dtype) * momentum
        if running_var is not None:
            unbiased = var * (count / (count - 1) if count > 1 else math.nan)
            running_var = running_var * (1 - momentum) + unbiased.cast(running_var.dtype) * momentum
    else:
        mean, var = running_mean.cast(kept), running_var.cast(kept)
    invstd = (var + eps).rsqrt()
    if meta[1] is not None:
        mean, invstd = (v.cast(meta[1].tiny).cast(kept) for v in (mean, invstd))
    result = (x - channels(mean, rank)) * channels(invstd, rank)
    result = affine(result, *(None if p is None else channels(p, rank) for p in (weight, bias)))
    return result, mean, invstd, running_mean, running_var


def saved(value: Tensor, meta) -> Tensor | None:
    """What is kept for the backward pass: nothing, where PyTorch keeps nothing outside of training."""
    if meta is None:
        return None
    return Tensor.zeros(0, dtype=meta.tiny) if meta.shape == (0,) else value


def reserve(meta) -> Tensor | None:
    """What some other devices keep for the backward pass."""
    return None if meta is None else Tensor.zeros(*meta.shape, dtype=meta.tiny)


@lowers(aten.native_batch_norm.default, reads_twice=True)
def native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps, *, meta):
    """Without the write to the running statistics, which the schema does not show."""
    out, mean, invstd, _, _ = batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps, meta)
    return out, saved(mean, meta[1]), saved(invstd, meta[2])


@lowers(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(x, weight, bias, training, momentum, eps, *, meta):
    return batch_norm(x, weight, bias, None, None, True, momentum, eps, meta)[:3]


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(x, weight, bias, running_mean, running_var, momentum, eps, *, meta):
    return native_batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps, meta=meta)


@lowers(aten._native_batch_norm_legit_functional.default, lifts=("momentum",))
def batch_norm_functional(x, weight, bias, running_mean, running_var, training, momentum, eps, *, meta):
    out, mean, invstd, new_mean, new_var = batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps, meta
    )
    return out, saved(mean, meta[1]), saved(invstd, meta[2]), new_mean, new_var


@lowers(aten._batch_norm_with_update_functional.default, lifts=("momentum",))
def batch_norm_update_functional(x, weight, bias, running_mean, running_var, momentum, eps, *, meta):
    out, mean, invstd, new_mean, new_var = batch_norm(
        x, weight, bias, running_mean, running_var, True, momentum, eps, meta
    )
    return out, mean, invstd, reserve(meta[3]), new_mean, new_var


@lowers(aten._batch_norm_no_update.default)
def batch_norm_no_update(x, weight, bias, running_mean, running_var, momentum, eps, *, meta):
    out, mean, invstd, _, _ = batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps, meta)
    return out, saved(mean, meta[1]), saved(invstd, meta[2]), reserve(meta[3])


@lowers(aten.native_batch_norm_backward.default, reads_twice=True)
def batch_norm_gradients(
    grad, x, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask
) -> tuple[Tensor | None, ...]:
    grad, x = wide(grad), wide(x)
    kept, rank, axes = x.dtype, x.ndim, per_channel_axes(x)
    count = max(math.prod(x.shape[a] for a in axes), 1)
    if train:
        mean, invstd = save_mean.cast(kept), save_invstd.cast(kept)
    else:
        mean, invstd = running_mean.cast(kept), (running_var.cast(kept) + eps).rsqrt()
    normal = (x - channels(mean, rank)) * channels(invstd, rank)
    grad_bias = summed(grad, axes, kept).reshape(-1)
    grad_weight = summed(grad * normal, axes, kept).reshape(-1)
    scale = invstd if weight is None else invstd * weight.cast(kept)
    grad_x = grad
    if train:
        grad_x = grad - channels(grad_bias / count, rank) - normal * channels(grad_weight / count, rank)
    grad_x = grad_x * channels(scale, rank)
    results = (grad_x, grad_weight, grad_bias)
    return tuple(result if wanted else None for result, wanted in zip(results, output_mask, strict=True))


@lowers(aten.batch_norm_backward.default)
def batch_norm_gradients_with_reserve(
    grad, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask, kept
):
    return batch_norm_gradients(
        grad, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


def inner_axes(x: Tensor, normalized_shape) -> tuple[int, ...]:
    return tuple(range(x.ndim - len(normalized_shape), x.ndim))


@lowers(aten.native_layer_norm.default, reads_twice=True)
def layer_norm(x, normalized_shape, weight, bias, eps):
    if rows.worth(x, len(normalized_shape)):
        return rows.layer_norm(x, len(normalized_shape), weight, bias, eps)
    x = wide(x)
    mean, var, _ = statistics(x, inner_axes(x, normalized_shape), x.dtype)
    rstd = (var + eps).rsqrt()
    return affine((x - mean) * rstd, weight, bias), mean, rstd


def normalized_input_gradient(grad: Tensor, normal: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The gradient before the division by the deviation, of x ↦ (x - mean) / deviation over `axes`."""
    count = max(math.prod(grad.shape[a] for a in axes), 1)
    mean_grad = grad.sum(axes, keepdim=True) / count
    return grad - mean_grad - normal * ((grad * normal).sum(axes, keepdim=True) / count)


@lowers(aten.native_layer_norm_backward.default, reads_twice=True)
def layer_norm_backward(grad, x, normalized_shape, mean, rstd, weight, bias, output_mask):
    grad, x = wide(grad), wide(x)
    kept, axes = x.dtype, inner_axes(x, normalized_shape)
    outer = tuple(range(x.ndim - len(normalized_shape)))
    rstd = rstd.cast(kept)
    normal = (x - mean.cast(kept)) * rstd
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        inner = grad if weight is None else grad * weight.cast(kept)
        grad_x = normalized_input_gradient(inner, normal, axes) * rstd
    if output_mask[1]:
        grad_weight = (grad * normal).sum(outer, dtype=kept) if outer else grad * normal
    if output_mask[2]:
        grad_bias = grad.sum(outer, dtype=kept) if outer else grad
    return grad_x, grad_weight, grad_bias


@lowers(aten.native_group_norm.default, reads_twice=True)
def group_norm(x, weight, bias, n, c, pixels, groups, eps):
    shape, x = x.shape, wide(x)
    mean, var, _ = statistics(x.reshape(n, groups, c // groups * pixels), (2,), x.dtype)
    rstd = (var + eps).rsqrt()
    result = ((x.reshape(n, groups, c // groups * pixels) - mean) * rstd).reshape(n, c, pixels)
    result = affine(result, *(None if p is None else p.reshape(1, c, 1) for p in (weight, bias)))
    return result.reshape(shape), mean.squeeze(2), rstd.squeeze(2)


@lowers(aten.native_group_norm_backward.default, reads_twice=True)
def group_norm_backward(grad, x, mean, rstd, weight, n, c, pixels, groups, output_mask):
    shape, kept = x.shape, accumulator(x.dtype)
    grouped = (n, groups, c // groups * pixels)
    grad, x = (wide(t).reshape(grouped) for t in (grad, x))
    rstd = rstd.cast(kept).unsqueeze(2)
    normal = (x - mean.cast(kept).unsqueeze(2)) * rstd
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        inner = grad
        if weight is not None:
            inner = (grad.reshape(n, c, pixels) * weight.cast(kept).reshape(1, c, 1)).reshape(grouped)
        grad_x = (normalized_input_gradient(inner, normal, (2,)) * rstd).reshape(shape)
    if output_mask[1]:
        grad_weight = (grad * normal).reshape(n, c, pixels).sum((0, 2), dtype=kept)
    if output_mask[2]:
        grad_bias = grad.reshape(n, c, pixels).sum((0, 2), dtype=kept)
    return grad_x, grad_weight, grad_bias


@lowers(aten._fused_rms_norm_backward.default, reads_twice=True)
def rms_norm_backward(grad, x, normalized_shape, rstd, weight, output_mask):
    grad, x = wide(grad), wide(x)
    kept, axes = x.dtype, inner_axes(x, normalized_shape)
    outer = tuple(range(x.ndim - len(normalized_shape)))
    rstd = rstd.cast(kept)
    normal = x * rstd
    grad_x = grad_weight = None
    if output_mask[0]:
        inner = grad if weight is None else grad * weight.cast(kept)
        count = max(math.prod(normalized_shape), 1)
        grad_x = (inner - normal * ((inner * normal).sum(axes, keepdim=True) / count)) * rstd
    if output_mask[1]:
        grad_weight = (grad * normal).sum(outer, dtype=kept) if outer else grad * normal
    return grad_x, grad_weight


def weight_norm_axes(v: Tensor, dim: int) -> tuple[int, ...]:
    return tuple(d for d in range(v.ndim) if d != dim % v.ndim)


@lowers(aten._weight_norm_interface.default)
def weight_norm(v, g, dim: int = 0):
    wide_v = wide(v)
    norms = (wide_v * wide_v).sum(weight_norm_axes(v, dim), keepdim=True).sqrt()
    return wide_v * (wide(g) / norms), norms


@lowers(aten._weight_norm_interface_backward.default)
def weight_norm_backward(grad_w, saved_v, saved_g, saved_norms, dim: int):
    grad, v, g = wide(grad_w), wide(saved_v), wide(saved_g)
    norms = saved_norms.cast(v.dtype)
    along = (grad * v).sum(weight_norm_axes(v, dim), keepdim=True) / norms
    return (g / norms) * (grad - v * (along / norms)), along
