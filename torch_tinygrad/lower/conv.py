"""Convolutions of any rank and their gradients, all of them as one correlation of a padded input with a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tinygrad import Tensor

from ..kernels.threads import in_parallel
from .matmul import accumulator
from .registry import lowers

aten = torch.ops.aten
Pads = Sequence[tuple[int, int]]


def each(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """PyTorch writes one number for all dimensions."""
    return tuple(values) if len(values) == rank else tuple(values) * rank


def padded(x: Tensor, pads: Pads) -> Tensor:
    """`x` with zeros around its last dimensions (cut where a pad is negative)."""
    return x.pad(((0, 0),) * (x.ndim - len(pads)) + tuple(pads))


def spread(x: Tensor, stride: Sequence[int]) -> Tensor:
    """`x` with stride - 1 zeros between neighbours of its last dimensions."""
    if all(s == 1 for s in stride):
        return x
    lead, sizes = x.shape[: x.ndim - len(stride)], x.shape[x.ndim - len(stride) :]
    x = x.reshape(*lead, *(n for size in sizes for n in (size, 1)))
    x = x.pad(((0, 0),) * len(lead) + tuple(p for s in stride for p in ((0, 0), (0, s - 1))))
    x = x.reshape(*lead, *(size * s for size, s in zip(sizes, stride, strict=True)))
    return x.shrink(tuple((0, n) for n in lead) + tuple((0, n * s - s + 1) for n, s in zip(sizes, stride, strict=True)))


def outputs_last(w: Tensor, outputs: int) -> Tensor:
    """The kernel with its output channels beside each other in memory: on an H200 the copy made two float32
    ResNet convolutions 3.5 and 4.1 times as fast (3x3: 64 channels at 56x56, and 128 to 256 with stride 2 at 28x28)."""
    if outputs == 1 or not in_parallel(w):
        return w
    return w.permute(*range(1, w.ndim), 0).contiguous().permute(w.ndim - 1, *range(w.ndim - 1))


def correlate(x: Tensor, w: Tensor, groups: int, stride: Sequence[int], dilation: Sequence[int], pads: Pads) -> Tensor:
    """out[n, o, y] = sum over c, k of x[n, c, y * stride + k * dilation - pad] * w[o, c, k], in the accumulator."""
    batch, rank = x.shape[0], len(stride)
    outputs, inputs = w.shape[0] // groups, w.shape[1]
    kept = accumulator(x.dtype)
    windows = padded(x, pads)._pool(w.shape[2:], tuple(stride), tuple(dilation))
    sizes = windows.shape[2 : 2 + rank]
    windows, w = windows.cast(kept), outputs_last(w, outputs).cast(kept)
    windows = windows.reshape(batch, groups, inputs, 1, *sizes, *w.shape[2:])
    windows = windows.permute(0, 1, 3, *range(4, 4 + rank), 2, *range(4 + rank, 4 + 2 * rank))
    kernel = w.reshape(1, groups, outputs, *(1,) * rank, inputs, *w.shape[2:])
    result = (windows * kernel).sum(tuple(range(-1 - rank, 0)), dtype=kept)
    return result.reshape(batch, groups * outputs, *sizes)


def correlate_transposed(
    x: Tensor,
    w: Tensor,
    groups: int,
    stride: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    sizes: Sequence[int],
) -> Tensor:
    """The adjoint of `correlate` in its input, for an input of spatial `sizes`. `w` is [x's channels, outputs, k]."""
    kernel = w.shape[2:]
    rank = len(kernel)
    inputs, outputs = w.shape[0] // groups, w.shape[1]
    w = w.reshape(groups, inputs, outputs, *kernel).transpose(1, 2).reshape(groups * outputs, inputs, *kernel)
    x = spread(x, stride)
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    after = [
        s + d * (k - 1) - n - b for s, d, k, n, b in zip(sizes, dilation, kernel, x.shape[2:], before, strict=True)
    ]
    return correlate(
        x, w.flip(*range(2, 2 + rank)), groups, (1,) * rank, dilation, tuple(zip(before, after, strict=True))
    )


def kernel_gradient(
    x: Tensor,
    grad: Tensor,
    groups: int,
    stride: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    kernel: Sequence[int],
) -> Tensor:
    """The adjoint of `correlate` in its kernel: [grad's channels, x's channels per group, k]. Batch and channels swap
    places, and so do stride and dilation."""
    batch, inputs = x.shape[0], x.shape[1] // groups
    x = x.reshape(batch, groups, inputs, *x.shape[2:]).transpose(0, 2).reshape(inputs, groups * batch, *x.shape[2:])
    after = [
        d * (k - 1) + s * (g - 1) + 1 - n - p
        for d, k, s, g, n, p in zip(dilation, kernel, stride, grad.shape[2:], x.shape[2:], padding, strict=True)
    ]
    result = correlate(x, grad.transpose(0, 1), groups, dilation, stride, tuple(zip(padding, after, strict=True)))
    return result.transpose(0, 1)


@lowers(aten.convolution.default, aten.convolution_overrideable.default)
def convolution(
    x: Tensor, w: Tensor, bias: Tensor | None, stride, padding, dilation, transposed, output_padding, groups, *, meta
) -> Tensor:
    rank, shape = x.ndim - 2, meta[0].shape
    if 0 in shape:
        return Tensor.zeros(*shape, dtype=meta[0].tiny)
    stride, padding, dilation = (each(v, rank) for v in (stride, padding, dilation))
    if transposed:
        result = correlate_transposed(x, w, groups, stride, dilation, padding, shape[2:])
    else:
        result = correlate(x, w, groups, stride, dilation, tuple((p, p) for p in padding))
    return result if bias is None else result + bias.reshape(1, -1, *(1,) * rank).cast(result.dtype)


@lowers(aten._convolution.default)
def convolution_with_flags(*arguments, meta) -> Tensor:
    return convolution(*arguments[:9], meta=meta)


@lowers(aten.convolution_backward.default)
def convolution_backward(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    bias_sizes,
    stride,
    padding,
    dilation,
    transposed,
    output_padding,
    groups,
    output_mask,
) -> tuple[Tensor | None, ...]:
    rank = x.ndim - 2
    stride, padding, dilation = (each(v, rank) for v in (stride, padding, dilation))
    grad_x = grad_w = grad_bias = None
    nothing = 0 in grad.shape or 0 in x.shape
    if output_mask[0]:
        if nothing:
            grad_x = x.const_like(0)
        elif transposed:
            pads = tuple(
                (p, s * (n - 1) + d * (k - 1) + 1 - g - p)
                for p, s, n, d, k, g in zip(
                    padding, stride, x.shape[2:], dilation, w.shape[2:], grad.shape[2:], strict=True
                )
            )
            grad_x = correlate(grad, w, groups, stride, dilation, pads)
        else:
            grad_x = correlate_transposed(grad, w, groups, stride, dilation, padding, x.shape[2:])
    if output_mask[1]:
        if nothing:
            grad_w = w.const_like(0)
        else:
            inner, outer = (grad, x) if transposed else (x, grad)
            grad_w = kernel_gradient(inner, outer, groups, stride, dilation, padding, w.shape[2:])
    if output_mask[2]:
        grad_bias = grad.sum((0, *range(2, grad.ndim)), dtype=accumulator(grad.dtype))
    return grad_x, grad_w, grad_bias


@lowers(aten.convolution_backward_overrideable.default)
def convolution_backward_overrideable(
    grad, x, w, stride, padding, dilation, transposed, output_padding, groups, output_mask
) -> tuple[Tensor | None, ...]:
    return convolution_backward(
        grad, x, w, None, stride, padding, dilation, transposed, output_padding, groups, output_mask
    )
