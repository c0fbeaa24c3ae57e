"""Reading neighbourhoods without scatter: gathers by computed position and the adjoints of sliding windows, which
pools, folds and interpolations share. tinygrad turns the comparisons with a range here into direct loads."""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad import Tensor, dtypes

from .conv import padded, spread


def positions(size: int) -> Tensor:
    return Tensor.arange(size, dtype=dtypes.int32)


def take(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """`x` at positions `index` along `dim`, whose place index's dimensions take; 0 where a position is outside."""
    dim %= x.ndim
    after = (1,) * (x.ndim - dim - 1)
    hit = index.reshape(*index.shape, 1, *after) == Tensor.arange(x.shape[dim], dtype=index.dtype).reshape(-1, *after)
    table = x.reshape(*x.shape[:dim], *(1,) * index.ndim, *x.shape[dim:])
    return hit.where(table, 0).sum(dim + index.ndim, dtype=x.dtype)


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """`x[..., index[..., i]]`: like `take` in the last dimension, with a position list per row (leading dimensions
    of both are the same or 1)."""
    hit = index.unsqueeze(-1) == Tensor.arange(x.shape[-1], dtype=index.dtype)
    return hit.where(x.unsqueeze(-2), 0).sum(-1, dtype=x.dtype)


def windows_on(
    y: Tensor,
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    """[..., *sizes, *kernel]: for every input position the windows that contain it, that is y[o] where
    o * stride + k * dilation - padding is the position, else 0."""
    y = spread(y, stride)
    rank = len(sizes)
    spans = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    before = [span - p for span, p in zip(spans, padding, strict=True)]
    shape = y.shape[y.ndim - rank :]
    after = [size + span - n - b for size, span, n, b in zip(sizes, spans, shape, before, strict=True)]
    pooled = padded(y, tuple(zip(before, after, strict=True)))._pool(tuple(kernel), 1, tuple(dilation))
    return pooled.flip(*range(pooled.ndim - rank, pooled.ndim))


# Rows that lie over one another are added one by one up to this many, rather than in a loop.
FEW_ROWS = 9


def overlap_add(x: Tensor, size: int, stride: int, dilation: int, padding: int) -> Tensor:
    """[..., k, o] → [..., size]: adds x[k, o] at o * stride + k * dilation - padding."""
    kernel, count = x.shape[-2:]
    rows = -(-kernel // stride)
    if dilation == 1 and rows <= FEW_ROWS:
        x = padded(x, ((0, rows * stride - kernel), (0, 0))).reshape(*x.shape[:-2], rows, stride, count)
        x = sum(
            (padded(x[..., r, :, :], ((r, rows - 1 - r),)) for r in range(1, rows)),
            padded(x[..., 0, :, :], ((0, rows - 1),)),
        )
        x = x.transpose(-1, -2).flatten(-2)
        return padded(x, ((-padding, size + padding - x.shape[-1]),))
    # Each row is shifted by its multiple of the dilation by reading the padded rows with a shorter row length.
    x = spread(x, (stride,))
    length = x.shape[-1] + kernel * dilation
    lead = x.shape[:-2]
    x = padded(x, ((0, length - x.shape[-1]),)).reshape(*lead, kernel * length)
    short = length - dilation
    x = padded(x, ((0, kernel * short - kernel * length),)).reshape(*lead, kernel, short)
    x = x.sum(-2, dtype=x.dtype)
    return padded(x, ((-padding, size + padding - short),))
