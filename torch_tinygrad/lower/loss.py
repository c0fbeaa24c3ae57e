"""Losses and their gradients: one formula per element and one per gradient, reduced by PyTorch's rule."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType, least_upper_dtype

from . import elementary as e
from .matmul import accumulator
from .registry import lowers

aten = torch.ops.aten
NONE, MEAN, SUM = range(3)


def reduced(loss: Tensor, reduction: int) -> Tensor:
    if reduction == NONE:
        return loss
    total = loss.sum(dtype=loss.dtype)
    return total if reduction == SUM else total / loss.numel() if loss.numel() else total * float("nan")


def wide(value: Tensor) -> Tensor:
    return value.cast(accumulator(value.dtype))


def mean_share(grad: Tensor, count: int, reduction: int) -> Tensor:
    """The gradient that reaches each element."""
    return grad / count if reduction == MEAN and count else grad


def bce(x: Tensor, y: Tensor) -> Tensor:
    return (y - 1) * e.log1p(-x).maximum(-100) - y * e.log(x).maximum(-100)


def bce_slope(x: Tensor, y: Tensor) -> Tensor:
    return (x - y) / ((1 - x) * x).maximum(1e-12)


def smooth_l1(x: Tensor, y: Tensor, beta: float) -> Tensor:
    distance = (x - y).abs()
    return distance if beta == 0 else (distance < beta).where(0.5 * distance * distance / beta, distance - 0.5 * beta)


def smooth_l1_slope(x: Tensor, y: Tensor, beta: float) -> Tensor:
    difference = x - y
    if beta == 0:
        return difference.sign()
    return (difference <= -beta).where(-1.0, (difference >= beta).where(1.0, difference / beta))


def huber(x: Tensor, y: Tensor, delta: float) -> Tensor:
    distance = (x - y).abs()
    return (distance <= delta).where(0.5 * distance * distance, delta * (distance - 0.5 * delta))


def huber_slope(x: Tensor, y: Tensor, delta: float) -> Tensor:
    difference = x - y
    return (difference < -delta).where(-delta, (difference > delta).where(delta, difference))


# operator → loss of one element (none: written out above), its derivative, whether a parameter (beta, delta) follows
# the reduction
ELEMENTWISE: dict[str, tuple[Callable | None, Callable, bool]] = {
    "mse_loss": (None, lambda x, y: 2 * (x - y), False),
    "smooth_l1_loss": (smooth_l1, smooth_l1_slope, True),
    "huber_loss": (huber, huber_slope, True),
}


@lowers(aten.mse_loss.default)
def mse_loss(x: Tensor, y: Tensor, reduction: int = MEAN) -> Tensor:
    """The difference of half types is rounded before it is squared."""
    difference = wide((wide(x) - wide(y)).cast(least_upper_dtype(x.dtype, y.dtype)))
    return reduced(difference * difference, reduction)


def register_elementwise(name: str, loss: Callable | None, slope: Callable) -> None:
    if loss is not None:

        @lowers(getattr(aten, name).default)
        def forward(x: Tensor, y: Tensor, reduction: int = MEAN, *parameter: float) -> Tensor:
            return reduced(loss(wide(x), wide(y), *parameter), reduction)

    @lowers(getattr(aten, f"{name}_backward").default)
    def backward(grad: Tensor, x: Tensor, y: Tensor, reduction: int, *parameter: float) -> Tensor:
        slopes = slope(wide(x), wide(y), *parameter)
        return slopes * mean_share(wide(grad), slopes.numel(), reduction)


for _name, (_loss, _slope, _) in ELEMENTWISE.items():
    register_elementwise(_name, _loss, _slope)


def rounding(dtype: DType) -> Callable[[Tensor], Tensor]:
    """What PyTorch's operators of several steps do to half types after each of them."""
    return lambda value: wide(value.cast(dtype))


@lowers(aten.soft_margin_loss.default)
def soft_margin_loss(x: Tensor, y: Tensor, reduction: int = MEAN) -> Tensor:
    rounded = rounding(x.dtype)
    return reduced(rounded(e.log1p(rounded(e.exp(rounded(-wide(x) * wide(y)))))), reduction)


@lowers(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(grad: Tensor, x: Tensor, y: Tensor, reduction: int) -> Tensor:
    rounded = rounding(x.dtype)
    share = -1.0 / x.numel() if reduction == MEAN and x.numel() else -1.0
    z = rounded(e.exp(rounded(-wide(y) * wide(x))))
    return rounded(rounded(rounded(wide(y) * z) * share) / rounded(z + 1)) * wide(grad)


@lowers(aten.binary_cross_entropy.default)
def binary_cross_entropy(x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: int = MEAN) -> Tensor:
    loss = bce(wide(x), wide(y))
    return reduced(loss if weight is None else loss * wide(weight), reduction)


@lowers(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    slopes = bce_slope(wide(x), wide(y))
    slopes = slopes if weight is None else slopes * wide(weight)
    return slopes * mean_share(wide(grad), slopes.numel(), reduction)


def class_last(x: Tensor) -> Tensor:
    """Classes in the last dimension: [C], [N, C] and [N, C, H, W] all become [..., C]."""
    return x.permute(0, *range(2, x.ndim), 1) if x.ndim > 1 else x


def at_class(table: Tensor, target: Tensor) -> Tensor:
    """`table[..., target]`, 0 where the target is no class."""
    return (
        (target.unsqueeze(-1) == Tensor.arange(table.shape[-1], dtype=target.dtype))
        .where(table, 0)
        .sum(-1, dtype=table.dtype)
    )


def target_weights(target: Tensor, weight: Tensor | None, ignore_index: int, kept) -> Tensor:
    counted = target != ignore_index
    if weight is None:
        return counted.where(Tensor.ones((), dtype=kept), 0)
    return counted.where(at_class(wide(weight), target), 0)


@lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, *, meta
) -> tuple[Tensor, Tensor | None]:
    x = wide(x)
    target = target.reshape(class_last(x).shape[:-1])
    weights = target_weights(target, weight, ignore_index, x.dtype)
    loss = (target != ignore_index).where(-at_class(class_last(x), target) * weights, 0)
    if reduction == NONE:
        unused = None if meta[1] is None else Tensor.zeros(*meta[1].shape, dtype=x.dtype)
        return loss, weights if x.ndim == 1 else unused
    total_weight = weights.sum(dtype=x.dtype)
    total = loss.sum(dtype=x.dtype)
    return (total / total_weight if reduction == MEAN else total), total_weight


@lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    grad, kept = wide(grad), accumulator(x.dtype)
    channel = min(1, x.ndim - 1)
    target = target.reshape(class_last(x).shape[:-1])
    if reduction == MEAN:
        grad = grad / wide(total_weight)
    share = -grad * target_weights(target, weight, ignore_index, kept)
    classes = Tensor.arange(x.shape[channel], dtype=target.dtype).reshape(-1, *(1,) * max(x.ndim - 2, 0))
    hit = (target.unsqueeze(channel) == classes) & (target != ignore_index).unsqueeze(channel)
    return hit.where(share.unsqueeze(channel), 0).cast(kept)


def at_least_vector(x: Tensor) -> Tensor:
    return x if x.ndim else x.reshape(1)


def margin_hinge(x: Tensor, target: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """margin - x[target] + x[c] per class, and which class is the target."""
    is_target = target.unsqueeze(-1) == Tensor.arange(x.shape[-1], dtype=target.dtype)
    return margin - at_class(x, target).unsqueeze(-1) + x, is_target


@lowers(aten.multi_margin_loss.default)
def multi_margin_loss(x, target, p=1, margin=1, weight=None, reduction: int = MEAN, *, meta) -> Tensor:
    x = at_least_vector(wide(x))
    target = target.reshape(x.shape[:-1])
    hinge, is_target = margin_hinge(x, target, margin)
    loss = ((hinge > 0) & is_target.logical_not()).where(hinge if p == 1 else hinge * hinge, 0)
    if weight is not None:
        loss = loss * at_class(wide(weight), target).unsqueeze(-1)
    return reduced(loss.sum(-1, dtype=x.dtype) / x.shape[-1], reduction).reshape(meta[0].shape)


@lowers(aten.multi_margin_loss_backward.default)
def multi_margin_loss_backward(grad, x, target, p, margin, weight=None, reduction: int = MEAN, *, meta) -> Tensor:
    x, grad = at_least_vector(wide(x)), wide(grad)
    target = target.reshape(x.shape[:-1])
    hinge, is_target = margin_hinge(x, target, margin)
    slope = ((hinge > 0) & is_target.logical_not()).where(1.0 if p == 1 else 2 * hinge, 0).cast(x.dtype)
    if weight is not None:
        slope = slope * at_class(wide(weight), target).unsqueeze(-1)
    slope = is_target.where(-slope.sum(-1, keepdim=True), slope) / x.shape[-1]
    grad = mean_share(grad, target.numel(), reduction)
    return (slope * (grad.reshape(*target.shape, 1) if reduction == NONE else grad)).reshape(meta[0].shape)


def is_listed(target: Tensor) -> tuple[Tensor, Tensor]:
    """Labels before the first -1, and per class whether it is among them."""
    position = Tensor.arange(target.shape[-1], dtype=dtypes.int32)
    end = (target < 0).where(position, target.shape[-1]).min(-1, keepdim=True)
    listed = position < end
    classes = Tensor.arange(target.shape[-1], dtype=target.dtype).unsqueeze(-1)
    among = ((target.unsqueeze(-2) == classes) & listed.unsqueeze(-2)).any(-1)
    return listed, among


def label_pairs(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """1 - x[target[j]] + x[c] for every label j and class c outside the labels; and which pairs count."""
    listed, among = is_listed(target)
    at_labels = at_class(x.unsqueeze(-2), target)
    hinge = 1 - at_labels.unsqueeze(-1) + x.unsqueeze(-2)
    return hinge, listed.unsqueeze(-1) & among.logical_not().unsqueeze(-2) & (hinge > 0)


@lowers(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int, *, meta) -> tuple[Tensor, Tensor]:
    x, target = at_least_vector(wide(x)), at_least_vector(target)
    hinge, counts = label_pairs(x, target)
    loss = counts.where(hinge, 0).sum((-1, -2), dtype=x.dtype) / max(x.shape[-1], 1)
    return reduced(loss, reduction).reshape(meta[0].shape), is_listed(target)[1].cast(x.dtype).reshape(meta[1].shape)


@lowers(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(grad, x, target, reduction: int, is_target, *, meta) -> Tensor:
    x, target, grad = at_least_vector(wide(x)), at_least_vector(target), wide(grad)
    _, counts = label_pairs(x, target)
    classes = Tensor.arange(x.shape[-1], dtype=target.dtype)
    violations = counts.sum(-1, dtype=x.dtype)
    pulled = (target.unsqueeze(-1) == classes).where(violations.unsqueeze(-1), 0).sum(-2, dtype=x.dtype)
    slope = (counts.sum(-2, dtype=x.dtype) - pulled) / max(x.shape[-1], 1)
    rows = x.shape[0] if x.ndim > 1 else 1
    grad = mean_share(grad, rows, reduction)
    return (slope * (grad.unsqueeze(-1) if grad.ndim else grad)).reshape(meta[0].shape)
