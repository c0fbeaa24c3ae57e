"""Sliding blocks to columns and back: values are placed by padding and shifting rows, not by scattering."""

from __future__ import annotations

import torch
from tinygrad import Tensor

from .conv import padded
from .matmul import accumulator
from .registry import lowers
from .taps import overlap_add

aten = torch.ops.aten


def moved(x: Tensor, source: int, target: int) -> Tensor:
    order = [d for d in range(x.ndim) if d != source]
    order.insert(target, source)
    return x.permute(order)


@lowers(aten.im2col.default)
def im2col(x: Tensor, kernel_size, dilation, padding, stride, *, meta) -> Tensor:
    windows = padded(x, tuple((p, p) for p in padding))._pool(tuple(kernel_size), tuple(stride), tuple(dilation))
    lead = x.ndim - 2
    return windows.permute(*range(lead), lead + 2, lead + 3, lead, lead + 1).reshape(meta[0].shape)


@lowers(aten.col2im.default)
def col2im(x: Tensor, output_size, kernel_size, dilation, padding, stride, *, meta) -> Tensor:
    outputs = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(output_size, padding, dilation, kernel_size, stride, strict=True)
    ]
    x = x.cast(accumulator(x.dtype)).reshape(-1, *kernel_size, *outputs).transpose(2, 3)
    for axis in (0, 1):
        columns = x.permute(0, 3, 4, 1, 2) if axis == 0 else x
        x = overlap_add(columns, output_size[axis], stride[axis], dilation[axis], padding[axis])
        x = x if axis else x.permute(0, 3, 1, 2)
    return x.reshape(meta[0].shape)


@lowers(aten.unfold_backward.default)
def unfold_backward(grad: Tensor, input_sizes, dim: int, size: int, step: int) -> Tensor:
    grad = grad.cast(accumulator(grad.dtype))
    if not len(input_sizes):
        return grad.sum()
    dim %= len(input_sizes)
    windows = moved(grad, dim, grad.ndim - 1)
    return moved(overlap_add(windows, input_sizes[dim], step, 1, 0), len(input_sizes) - 1, dim)
