"""Optimizers with `fused=True`: each parameter's step, element by element. Gradients that were scaled are divided by
the scale, as `GradScaler` asks for, and where one was not finite nothing changes."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes

from . import elementary as e
from .registry import lowers

aten = torch.ops.aten


def wide(x: Tensor) -> Tensor:
    """In the precision that the CPU's kernels compute in."""
    return x if x.dtype == dtypes.float64 else x.float()


def number(value, like: Tensor):
    """A number that may have become an input of the program, or a learning rate that is a tensor."""
    return value.reshape(()).cast(like.dtype) if isinstance(value, Tensor) else value


def less_power(beta: float, step: Tensor, like: Tensor) -> Tensor:
    """1 - beta ** step, which cancels where it is computed as written."""
    if beta == 0:
        return step.reshape(()).cast(like.dtype) * 0 + 1
    return -e.expm1(step.reshape(()).cast(like.dtype) * math.log(beta))


def updated(before: list[Tensor], after: list[Tensor], found_inf: Tensor | None) -> list[Tensor]:
    """The new values in their types, or the old ones where a gradient was not finite."""
    after = [new.cast(old.dtype) for old, new in zip(before, after, strict=True)]
    if found_inf is None:
        return after
    failed = found_inf.reshape(()) == 1
    return [failed.where(old, new) for old, new in zip(before, after, strict=True)]


def unscaled(gradient: Tensor, grad_scale: Tensor | None) -> Tensor:
    return wide(gradient) if grad_scale is None else wide(gradient) / grad_scale.reshape(())


def adam(decays_weights: bool):
    def step(parameters, gradients, means, squares, maxima, steps, *, lr, beta1, beta2, weight_decay, eps, amsgrad,
             maximize, grad_scale=None, found_inf=None):  # fmt: skip
        results: list[list[Tensor]] = [[], [], [], [], []]
        for i, (parameter, gradient, mean, square) in enumerate(
            zip(parameters, gradients, means, squares, strict=True)
        ):
            p, g = wide(parameter), unscaled(gradient, grad_scale)
            given, rate = g, number(lr, p)
            g = -g if maximize else g
            if weight_decay and decays_weights:
                p = p * (1 - rate * weight_decay)
            elif weight_decay:
                g = g + p * weight_decay
            m = beta1 * wide(mean) + (1 - beta1) * g
            v = beta2 * wide(square) + (1 - beta2) * g * g
            largest = wide(maxima[i]).maximum(v) if amsgrad else v
            root = less_power(beta2, steps[i], p).sqrt()
            p = p - rate / less_power(beta1, steps[i], p) * m / (largest.sqrt() / root + eps)
            before = [parameter, gradient, mean, square, *([maxima[i]] if amsgrad else [])]
            after = [p, given, m, v, *([largest] if amsgrad else [])]
            for result, value in zip(results, updated(before, after, found_inf), strict=False):
                result.append(value)
        return [value for result in results for value in result]

    return step


lowers(aten._fused_adam.default, aten._fused_adam.tensor_lr, lifts=("lr",))(adam(decays_weights=False))
lowers(aten._fused_adamw.default, aten._fused_adamw.tensor_lr, lifts=("lr",))(adam(decays_weights=True))


@lowers(aten._fused_sgd.default, aten._fused_sgd.tensor_lr, lifts=("lr",))
def sgd(parameters, gradients, momenta, *, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step,
        grad_scale=None, found_inf=None):  # fmt: skip
    results: list[list[Tensor]] = [[], [], []]
    for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        p, g = wide(parameter), unscaled(gradient, grad_scale)
        given = g
        g = -g if maximize else g
        if weight_decay:
            g = g + p * weight_decay
        before, after = [parameter, gradient], [given]
        if momentum:
            moved = g if is_first_step else momentum * wide(momenta[i]) + (1 - dampening) * g
            before.append(momenta[i])
            after.append(moved)
            g = g + momentum * moved if nesterov else moved
        after.insert(0, p - number(lr, p) * g)
        for result, value in zip(results, updated(before, after, found_inf), strict=False):
            result.append(value)
    return [value for result in results for value in result]


@lowers(aten._fused_adagrad.default, aten._fused_adagrad.tensor_lr, lifts=("lr",))
def adagrad(parameters, gradients, sums, steps, *, lr, lr_decay, weight_decay, eps, maximize, grad_scale=None,
            found_inf=None):  # fmt: skip
    results: list[list[Tensor]] = [[], [], []]
    for parameter, gradient, total, step in zip(parameters, gradients, sums, steps, strict=True):
        p, g = wide(parameter), unscaled(gradient, grad_scale)
        given = g
        g = -g if maximize else g
        if weight_decay:
            g = g + p * weight_decay
        summed = wide(total) + g * g
        rate = number(lr, p) / (1 + (step.reshape(()).cast(p.dtype) - 1) * lr_decay)
        moved = p - rate * g / (summed.sqrt() + eps)
        for result, value in zip(
            results, updated([parameter, gradient, total], [moved, given, summed], found_inf), strict=True
        ):
            result.append(value)
    # The number of steps is among what it says it changes, and stays.
    return [value for result in [*results, steps] for value in result]
