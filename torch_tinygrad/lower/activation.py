"""Activation functions and their backward formulas. Parameters are static numbers; nan passes through as on the CPU."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor

from torch_tinygrad.lower import elementary as e
from torch_tinygrad.lower import maths as m
from torch_tinygrad.lower.maths import constant, operand, operands, widen
from torch_tinygrad.lower.registry import lowers
from torch_tinygrad.lower.special import normal_cdf

aten = torch.ops.aten


def activates(overload):
    """Registers f(x, *parameters), with x widened to the dtype PyTorch computes in."""

    def register(compute):
        @lowers(overload)
        def activation(x, *parameters, meta):
            return compute(operand(x, widen(meta[0].tiny)), *parameters)

        return compute

    return register


def differentiates(overload):
    """Registers f(gradient, x, *parameters), both tensors widened."""

    def register(compute):
        @lowers(overload)
        def backward(gradient, x, *parameters, meta):
            return compute(*operands(widen(meta[0].tiny), gradient, x), *parameters)

        return compute

    return register


def at_most(x: Tensor, bound) -> Tensor:
    return m.less_equal(x, constant(bound, x.dtype))


def at_least(x: Tensor, bound) -> Tensor:
    return m.greater_equal(x, constant(bound, x.dtype))


@activates(aten.relu.default)
def relu(x):
    return (x < 0).where(0, x)


@activates(aten.threshold.default)
def threshold(x, bound, value):
    return at_most(x, bound).where(constant(value, x.dtype), x)


@differentiates(aten.threshold_backward.default)
def threshold_backward(gradient, x, bound):
    return at_most(x, bound).where(0, gradient)


@activates(aten.leaky_relu.default)
def leaky_relu(x, slope=0.01):
    return (x > 0).where(x, x * slope)


@differentiates(aten.leaky_relu_backward.default)
def leaky_relu_backward(gradient, x, slope, self_is_result):
    return (x > 0).where(gradient, gradient * slope)


@differentiates(aten.rrelu_with_noise_backward.default)
def rrelu_backward(gradient, x, noise, lower, upper, training, self_is_result):
    if training and upper - lower > 1e-6:
        return gradient * operand(noise, gradient.dtype)
    return leaky_relu_backward(gradient, x, (lower + upper) / 2, self_is_result)


@lowers(aten._prelu_kernel.default)
def prelu(x, weight, *, meta):
    x, weight = operands(widen(meta[0].tiny), x, weight)
    return (x > 0).where(x, weight * x)


@lowers(aten._prelu_kernel_backward.default)
def prelu_backward(gradient, x, weight, *, meta):
    gradient, x, weight = operands(widen(meta[0].tiny), gradient, x, weight)
    return (x > 0).where(gradient, weight * gradient), (x > 0).where(0, x * gradient)


@activates(aten.elu.default)
def elu(x, alpha=1, scale=1, input_scale=1):
    return (x < 0).where(e.expm1(x * input_scale) * (alpha * scale), x * scale)


@activates(aten.celu.default)
def celu(x, alpha=1.0):
    return elu(x, alpha, 1.0, 1.0 / alpha)


@lowers(aten.elu_backward.default)
def elu_backward(gradient, alpha, scale, input_scale, is_result, x, *, meta):
    gradient, x = operands(widen(meta[0].tiny), gradient, x)
    slope = (x + alpha * scale) if is_result else e.exp(x * input_scale) * (alpha * scale)
    return at_most(x, 0).where(gradient * input_scale * slope, gradient * scale)


def gelu_tanh_inner(x: Tensor) -> tuple[Tensor, Tensor]:
    """The tanh of the approximation and its argument's derivative."""
    root = math.sqrt(2 / math.pi)
    return e.tanh(root * (x + 0.044715 * x * x * x)), root * (1.0 + 3 * 0.044715 * x * x)


@lowers(aten.gelu.default)
def gelu(x, *, meta, approximate="none"):
    x = operand(x, widen(meta[0].tiny))
    if approximate == "tanh":
        return 0.5 * x * (1.0 + gelu_tanh_inner(x)[0])
    return x * normal_cdf(x)


@lowers(aten.gelu_backward.default)
def gelu_backward(gradient, x, *, meta, approximate="none"):
    gradient, x = operands(widen(meta[0].tiny), gradient, x)
    if approximate == "tanh":
        inner, slope = gelu_tanh_inner(x)
        return gradient * (0.5 * (1.0 + inner) + 0.5 * x * (1.0 - inner * inner) * slope)
    density = e.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return gradient * (normal_cdf(x) + x * density)


@activates(aten.silu.default)
def silu(x):
    return x * e.sigmoid(x)


@activates(aten.mish.default)
def mish(x):
    """x * tanh(log(1 + e**x)), in powers of e**x alone; from some x on it is x."""
    power = e.exp((x > 20.0).where(20.0, x))
    grown = m.fma(power, power, power + power)
    return x * (grown / (grown + 2.0))


@activates(aten.hardtanh.default)
def hardtanh(x, low=-1, high=1):
    return m.minimum(m.maximum(x, constant(low, x.dtype)), constant(high, x.dtype))


@differentiates(aten.hardtanh_backward.default)
def hardtanh_backward(gradient, x, low, high):
    return (at_most(x, low) | at_least(x, high)).where(0, gradient)


def relu6(x: Tensor) -> Tensor:
    return hardtanh(x, 0, 6)


@activates(aten.hardswish.default)
def hardswish(x):
    return x * relu6(x + 3.0) / 6.0


@differentiates(aten.hardswish_backward.default)
def hardswish_backward(gradient, x):
    return at_most(x, -3).where(0, (x < 3).where(gradient * (x / 3.0 + 0.5), gradient))


@activates(aten.hardsigmoid.default)
def hardsigmoid(x):
    return relu6(x + 3.0) / 6.0


@differentiates(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(gradient, x):
    return ((x > -3) & (x < 3)).where(gradient / 6.0, 0)


@activates(aten.softplus.default)
def softplus(x, beta=1, linear_above=20):
    scaled = x * beta
    return (scaled > linear_above).where(x, e.log1p(e.exp(scaled)) / beta)


@differentiates(aten.softplus_backward.default)
def softplus_backward(gradient, x, beta, linear_above):
    scaled = x * beta
    return (scaled > linear_above).where(gradient, gradient * e.sigmoid(scaled))


@lowers(aten.log_sigmoid_forward.default)
def log_sigmoid(x, *, meta):
    x = operand(x, widen(meta[0].tiny))
    decay = e.exp(-m.absolute(x))
    buffer = decay if meta[1].shape == meta[0].shape else constant(0, x.dtype, meta[1].shape)
    return (x < 0).where(x, 0.0) - e.log1p(decay), buffer


@differentiates(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(gradient, x, buffer):
    return gradient * e.sigmoid(-x)


@differentiates(aten.sigmoid_backward.default)
def sigmoid_backward(gradient, output):
    return gradient * (1.0 - output) * output


@differentiates(aten.tanh_backward.default)
def tanh_backward(gradient, output):
    return gradient * (1.0 - output * output)


def inside(x: Tensor, bound) -> Tensor:
    return at_least(x, -bound) & at_most(x, bound)


@activates(aten.hardshrink.default)
def hardshrink(x, bound=0.5):
    return inside(x, bound).where(0, x)


@activates(aten.softshrink.default)
def softshrink(x, bound=0.5):
    return inside(x, bound).where(0, (x < 0).where(x + bound, x - bound))


@differentiates(aten.hardshrink_backward.default)
def hardshrink_backward(gradient, x, bound):
    return inside(x, bound).where(0, gradient)


@differentiates(aten.softshrink_backward.default)
def softshrink_backward(gradient, x, bound):
    return inside(x, bound).where(0, gradient)


@activates(aten.glu.default)
def glu(x, dim=-1):
    value, gate = x.chunk(2, dim)
    return value * e.sigmoid(gate)


@differentiates(aten.glu_backward.default)
def glu_backward(gradient, x, dim):
    value, gate = x.chunk(2, dim)
    opening = e.sigmoid(gate)
    return Tensor.cat(gradient * opening, gradient * value * opening * (1.0 - opening), dim=dim)


@lowers(aten.logit.default)
def logit(x, eps=None, *, meta):
    """Each step of a half type is rounded. Otherwise the logarithm is that of a number near 1 less it, near 1/2."""
    result = meta[0].tiny
    x = operand(x, widen(result))
    if eps is not None:
        x = hardtanh(x, eps, 1.0 - eps)
    rest = (1.0 - x).cast(result).cast(x.dtype)
    value = e.log((x / rest).cast(result).cast(x.dtype))
    if x.dtype != result:
        return value
    is_middle = (x > 0.3) & (x < 0.7)
    middle = is_middle.where(x, 0.5)
    return is_middle.where(e.log1p((2.0 * middle - 1.0) / (1.0 - middle)), value)


@differentiates(aten.logit_backward.default)
def logit_backward(gradient, x, eps=None):
    low, outside = (0.0, m.NAN) if eps is None else (eps, 0.0)
    return (at_least(x, low) & at_most(x, 1.0 - low)).where(gradient / (x * (1.0 - x)), outside)
