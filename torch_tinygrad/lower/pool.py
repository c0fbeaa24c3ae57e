"""Sliding and adaptive pools. Gradients look up, per input position, the windows that contain it: nothing scatters."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from itertools import product

import torch
from tinygrad import Tensor, dtypes

from .conv import each, padded
from .matmul import accumulator
from .registry import lowers
from .taps import positions, take, windows_on

aten = torch.ops.aten

# Windows of at most this many elements are written out rather than looped over.
FEW_TAPS = 9


def wide(x: Tensor) -> Tensor:
    return x.cast(accumulator(x.dtype)) if dtypes.is_float(x.dtype) else x


def window_pads(sizes, outputs, kernel, stride, dilation, padding) -> tuple[tuple[int, int], ...]:
    """Padding that gives exactly `outputs` windows: more after the end where ceil_mode adds one, less where the stride
    leaves a rest."""
    return tuple(
        (p, (o - 1) * s + d * (k - 1) + 1 - n - p)
        for n, o, k, s, d, p in zip(sizes, outputs, kernel, stride, dilation, padding, strict=True)
    )


def flat_positions(sizes: Sequence[int]) -> Tensor:
    return positions(math.prod(sizes)).reshape(tuple(sizes))


def lowest(x: Tensor):
    return -math.inf if dtypes.is_float(x.dtype) else x.dtype.min


def largest(values: Tensor, places: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The maximum and where it is: the first one, or the last nan. `places` is -1 where a window holds nothing."""
    valid = places >= 0
    far = dtypes.int32.max
    if not dtypes.is_float(values.dtype):
        top = valid.where(values, lowest(values)).max(axes, keepdim=True)
        first = (valid & (values == top)).where(places, far).min(axes)
        return top.reshape(first.shape), first
    is_nan = values.isnan() & valid
    top = (valid & is_nan.logical_not()).where(values, -math.inf).max(axes, keepdim=True)
    last_nan = is_nan.where(places, -1).max(axes)
    first_top = (valid & (values == top)).where(places, far).min(axes)
    has_nan = last_nan >= 0
    return has_nan.where(math.nan, top.reshape(has_nan.shape)), has_nan.where(last_nan, first_top)


def taps(windows: Tensor, rank: int) -> list[Tensor]:
    """The elements of windows, the last dimensions, one tensor for each place."""
    return [windows[(..., *place)] for place in product(*(range(k) for k in windows.shape[-rank:]))]


def largest_in_turn(values: Tensor, places: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """`largest`, comparing one place after another: element by element, it joins the kernels around it. Whether a
    window has begun inside depends on the window alone, and is not computed again for every channel."""
    top = at = has_begun = None
    for value, place in zip(taps(values, rank), taps(places, rank), strict=True):
        valid, place = place >= 0, place.expand(value.shape)
        if top is None or at is None or has_begun is None:
            top, at, has_begun = valid.where(value, lowest(value)), place, valid
            continue
        better = valid & ((value > top) | (value != value) | has_begun.logical_not())
        top, at, has_begun = better.where(value, top), better.where(place, at), has_begun | valid
    return top, at


def spatial(rank: int, kernel_size, stride, padding, dilation=(1,)) -> tuple[tuple[int, ...], ...]:
    kernel = each(kernel_size, rank)
    return kernel, each(stride, rank) if len(stride) else kernel, each(padding, rank), each(dilation, rank)


def max_pool(rank: int, x, kernel_size, stride, padding, dilation, meta) -> tuple[Tensor, Tensor]:
    shape = meta[0].shape
    if 0 in shape:
        return Tensor.zeros(*shape, dtype=x.dtype), Tensor.zeros(*shape, dtype=dtypes.int64)
    kernel, stride, padding, dilation = spatial(rank, kernel_size, stride, padding, dilation)
    sizes = x.shape[-rank:]
    pads = window_pads(sizes, shape[-rank:], kernel, stride, dilation, padding)
    windows = padded(x, pads)._pool(kernel, stride, dilation)
    places = (padded(flat_positions(sizes) + 1, pads) - 1)._pool(kernel, stride, dilation)
    if math.prod(kernel) <= FEW_TAPS:
        return largest_in_turn(windows, places, rank)
    return largest(windows, places, tuple(range(windows.ndim - rank, windows.ndim)))


def window_of(y: Tensor, before: Sequence[int], stride, padding, sizes) -> Tensor:
    """For every input position, `y` at the last window that begins at or before it, or so many windows `before` that; 0
    where there is none."""
    rank = len(sizes)
    y = padded(y, tuple((n, 0) for n in before))
    lead, outputs = y.shape[: y.ndim - rank], y.shape[y.ndim - rank :]
    y = y.reshape(*lead, *(n for o in outputs for n in (o, 1)))
    y = y.expand(*lead, *(n for pair in zip(outputs, stride, strict=True) for n in pair))
    y = y.reshape(*lead, *(o * s for o, s in zip(outputs, stride, strict=True)))
    ends = zip(sizes, outputs, stride, padding, strict=True)
    return padded(y, tuple((-p, size + p - o * s) for size, o, s, p in ends))


def max_pool_backward(rank: int, grad, x, kernel_size, stride, padding, dilation, indices) -> Tensor:
    if 0 in grad.shape or 0 in x.shape:
        return x.const_like(0)
    kernel, stride, padding, dilation = spatial(rank, kernel_size, stride, padding, dilation)
    sizes, grad = x.shape[-rank:], wide(grad)
    found, here = indices.cast(dtypes.int32) + 1, flat_positions(sizes) + 1
    spans = (d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    overlaps = [-(-span // s) for span, s in zip(spans, stride, strict=True)]  # windows that a position may be in
    if math.prod(overlaps) <= FEW_TAPS:
        shares = []
        for before in itertools.product(*(range(n) for n in overlaps)):
            own, share = (window_of(y, before, stride, padding, sizes) for y in (found, grad))
            shares.append((own == here).where(share, 0))
        return functools.reduce(Tensor.add, shares)
    found, share = (windows_on(y, sizes, kernel, stride, dilation, padding) for y in (found, grad))
    shares = (found == here.reshape(*sizes, *(1,) * rank)).where(share, 0)
    return shares.sum(tuple(range(x.ndim, x.ndim + rank)), dtype=share.dtype)


def covered(size: int, output: int, kernel: int, stride: int, padding: int, include_pad: bool) -> Tensor:
    """How many positions each window averages over, in one dimension."""
    start = positions(output) * stride - padding
    end = (start + kernel).minimum(size + padding)
    return end - start if include_pad else end.minimum(size) - start.maximum(0)


def divisors(sizes, outputs, kernel, stride, padding, include_pad: bool, override) -> Tensor | int:
    if override is not None:
        return override
    rank, count = len(sizes), 1
    for i in range(rank):
        row = covered(sizes[i], outputs[i], kernel[i], stride[i], padding[i], include_pad)
        count = row.reshape(-1, *(1,) * (rank - 1 - i)) * count
    return count


def divided(x: Tensor, count: Tensor | int) -> Tensor:
    if not dtypes.is_float(x.dtype):
        return x.div(count, rounding_mode="trunc")
    return x / (count.cast(x.dtype) if isinstance(count, Tensor) else count)


def avg_pool(rank: int, x, kernel_size, stride, padding, include_pad, override, meta) -> Tensor:
    shape = meta[0].shape
    if 0 in shape:
        return Tensor.zeros(*shape, dtype=x.dtype)
    kernel, stride, padding, dilation = spatial(rank, kernel_size, stride, padding)
    sizes, outputs = x.shape[-rank:], shape[-rank:]
    pads = window_pads(sizes, outputs, kernel, stride, dilation, padding)
    windows = padded(wide(x), pads)._pool(kernel, stride, dilation)
    total = windows.sum(tuple(range(windows.ndim - rank, windows.ndim)), dtype=windows.dtype)
    return divided(total, divisors(sizes, outputs, kernel, stride, padding, include_pad, override))


def avg_pool_backward(rank: int, grad, x, kernel_size, stride, padding, include_pad, override) -> Tensor:
    if 0 in grad.shape or 0 in x.shape:
        return x.const_like(0)
    kernel, stride, padding, dilation = spatial(rank, kernel_size, stride, padding)
    sizes = x.shape[-rank:]
    count = divisors(sizes, grad.shape[-rank:], kernel, stride, padding, include_pad, override)
    shares = windows_on(divided(wide(grad), count), sizes, kernel, stride, dilation, padding)
    return shares.sum(tuple(range(x.ndim, x.ndim + rank)), dtype=shares.dtype)


def adaptive_start(output: Tensor, size: int, outputs: int) -> Tensor:
    return output * size // outputs


def adaptive_end(output: Tensor, size: int, outputs: int) -> Tensor:
    return ((output + 1) * size + outputs - 1) // outputs


def longest_window(size: int, outputs: int) -> int:
    return max(-(-(o + 1) * size // outputs) - o * size // outputs for o in range(outputs))


def adaptive_windows(x: Tensor, places: Tensor, outputs: Sequence[int]) -> tuple[Tensor, Tensor]:
    """`x` and its places, [..., *sizes] → [..., *outputs, *windows]; places are -1 past a window's end."""
    rank = len(outputs)
    lead = x.ndim - rank
    places = places + 1
    for i, count in enumerate(outputs):
        size = x.shape[lead + 2 * i]
        first = adaptive_start(positions(count), size, count).unsqueeze(1)
        index = first + positions(longest_window(size, count))
        inside = index < adaptive_end(positions(count), size, count).unsqueeze(1)
        x = take(x, lead + 2 * i, index)
        places = take(places, 2 * i, inside.where(index, -1))
    order = (*range(0, 2 * rank, 2), *range(1, 2 * rank, 2))
    return x.permute(*range(lead), *(lead + o for o in order)), places.permute(order) - 1


def adaptive_avg(x: Tensor, outputs: Sequence[int], meta) -> Tensor:
    """One dimension after the other: the windows are products of intervals."""
    if 0 in meta[0].shape or 0 in x.shape:
        return Tensor.full(meta[0].shape, math.nan, dtype=x.dtype)
    x = wide(x)
    lead = x.ndim - len(outputs)
    for i, count in enumerate(outputs):
        axis, size = lead + i, x.shape[lead + i]
        after = (1,) * (x.ndim - axis - 1)
        if size % count == 0:
            x = x.reshape(*x.shape[:axis], count, size // count, *x.shape[axis + 1 :])
            x = x.sum(axis + 1, dtype=x.dtype) / (size // count)
            continue
        start, end = (f(positions(count), size, count) for f in (adaptive_start, adaptive_end))
        index = start.unsqueeze(1) + positions(longest_window(size, count))
        index = (index < end.unsqueeze(1)).where(index, -1)
        total = take(x, axis, index).sum(axis + 1, dtype=x.dtype)
        x = total / (end - start).cast(x.dtype).reshape(-1, *after)
    return x


def adaptive_avg_backward(rank: int, grad: Tensor, x: Tensor) -> Tensor:
    """Input i is in the windows of outputs floor(i * O / S) to ceil((i + 1) * O / S) - 1."""
    if 0 in grad.shape or 0 in x.shape:
        return x.const_like(0)
    grad = wide(grad)
    lead = x.ndim - rank
    for i in range(rank):
        axis, size, count = lead + i, x.shape[lead + i], grad.shape[lead + i]
        after = (1,) * (grad.ndim - axis - 1)
        start, end = (f(positions(count), size, count) for f in (adaptive_start, adaptive_end))
        shares = grad / (end - start).cast(grad.dtype).reshape(-1, *after)
        first, last = (f(positions(size), count, size) for f in (adaptive_start, adaptive_end))
        index = first.unsqueeze(1) + positions(longest_window(count, size))
        index = (index < last.unsqueeze(1)).where(index, -1)
        grad = take(shares, axis, index).sum(axis + 1, dtype=grad.dtype)
    return grad


def adaptive_max(x: Tensor, outputs: Sequence[int], meta) -> tuple[Tensor, Tensor]:
    rank, shape = len(outputs), meta[0].shape
    if 0 in shape:
        return Tensor.zeros(*shape, dtype=x.dtype), Tensor.zeros(*shape, dtype=dtypes.int64)
    windows, places = adaptive_windows(x, flat_positions(x.shape[-rank:]), outputs)
    return largest(windows, places, tuple(range(windows.ndim - rank, windows.ndim)))


def adaptive_max_backward(rank: int, grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    if 0 in grad.shape or 0 in x.shape:
        return x.const_like(0)
    grad, indices, sizes = wide(grad), indices.cast(dtypes.int32) + 1, x.shape[-rank:]
    lead = x.ndim - rank
    for i in range(rank):
        axis, size, count = lead + 2 * i, sizes[i], grad.shape[lead + 2 * i]
        first, last = (f(positions(size), count, size) for f in (adaptive_start, adaptive_end))
        index = first.unsqueeze(1) + positions(longest_window(count, size))
        index = (index < last.unsqueeze(1)).where(index, -1)
        grad, indices = take(grad, axis, index), take(indices, axis, index)
    order = (*range(0, 2 * rank, 2), *range(1, 2 * rank, 2))
    order = (*range(lead), *(lead + o for o in order))
    here = flat_positions(sizes).reshape(*sizes, *(1,) * rank) + 1
    hit = indices.permute(order) == here
    return hit.where(grad.permute(order), 0).sum(tuple(range(x.ndim, x.ndim + rank)), dtype=grad.dtype)


def register(rank: int) -> None:
    def op(name: str):
        return getattr(aten, name.format(rank)).default

    @lowers(op("max_pool{}d_with_indices"))
    def max_forward(x, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False, *, meta):
        return max_pool(rank, x, kernel_size, stride, padding, dilation, meta)

    @lowers(op("max_pool{}d_with_indices_backward"))
    def max_backward(grad, x, kernel_size, stride, padding, dilation, ceil_mode, indices):
        return max_pool_backward(rank, grad, x, kernel_size, stride, padding, dilation, indices)

    @lowers(op("avg_pool{}d"))
    def avg_forward(x, kernel_size, stride=(), padding=(0,), ceil_mode=False, pad=True, divisor=None, *, meta):
        return avg_pool(rank, x, kernel_size, stride, padding, pad, divisor, meta)

    @lowers(op("avg_pool{}d_backward"))
    def avg_backward(grad, x, kernel_size, stride, padding, ceil_mode, pad, divisor):
        return avg_pool_backward(rank, grad, x, kernel_size, stride, padding, pad, divisor)

    @lowers(op("_adaptive_avg_pool{}d"))
    def adaptive_avg_forward(x, output_size, *, meta):
        return adaptive_avg(x, each(output_size, rank), meta)

    @lowers(op("_adaptive_avg_pool{}d_backward"))
    def adaptive_avg_grad(grad, x):
        return adaptive_avg_backward(rank, grad, x)

    @lowers(op("adaptive_max_pool{}d"))
    def adaptive_max_forward(x, output_size, *, meta):
        return adaptive_max(x, each(output_size, rank), meta)

    @lowers(op("adaptive_max_pool{}d_backward"))
    def adaptive_max_grad(grad, x, indices):
        return adaptive_max_backward(rank, grad, x, indices)


for _rank in (2, 3):
    register(_rank)
