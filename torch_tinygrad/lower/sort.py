"""Sorting and selection by rank: sort, topk, k-th values, medians and modes, all from one stable order of the rows."""

from __future__ import annotations

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels.arrays import positions, zeros
from torch_tinygrad.kernels.counting import search

from ..kernels.sorting import sort_keys, sort_order
from ..kernels.updates import update
from .gather import gather
from .matmul import accumulator
from .registry import Meta, lowers
from .shape import positive

aten = torch.ops.aten


class Rows:
    """A tensor seen as rows along one dimension, and the way back."""

    def __init__(self, x: Tensor, dim: int):
        self.x = x if x.ndim else x.reshape(1)
        self.dim = positive(dim, self.x.ndim)
        self.lead = tuple(s for d, s in enumerate(self.x.shape) if d != self.dim)
        self.size = self.x.shape[self.dim]
        count = 1
        for s in self.lead:
            count *= s
        moved = self.x.permute(*(d for d in range(self.x.ndim) if d != self.dim), self.dim)
        self.rows = moved.reshape(count, self.size)
        self.is_scalar = not x.ndim

    def back(self, rows: Tensor) -> Tensor:
        """Rows of any length as a tensor with that length along the dimension."""
        length = rows.shape[1]
        order = list(range(len(self.lead)))
        order.insert(self.dim, len(self.lead))
        return rows.reshape(*self.lead, length).permute(*order)

    def pick(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Values and positions for an order of the rows, both shaped back."""
        order = order.contiguous()
        at = self.back(order)
        if 0 in at.shape:
            values = zeros(tuple(at.shape), self.x.dtype)
        else:
            values = gather(self.x, self.dim, at, meta=(Meta(tuple(at.shape), torch.int64),))
        return (values.reshape(()), at.reshape(())) if self.is_scalar and at.numel() == 1 else (values, at)


@lowers(aten.sort.default)
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    rows = Rows(x, dim)
    return rows.pick(sort_order(sort_keys(rows.rows, descending)))


@lowers(aten.sort.stable)
def sort_stable(
    x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return sort(x, dim, descending)


@lowers(aten.topk.default)
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    rows = Rows(x, dim)
    return rows.pick(sort_order(sort_keys(rows.rows, largest), k))


def _selected(rows: Rows, rank: int | Tensor, keepdim: bool, order: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The element of each row at a rank of its order: one for all rows, or a column of them."""
    order = sort_order(sort_keys(rows.rows, False)) if order is None else order
    if isinstance(rank, Tensor):
        order = gather(order.contiguous(), 1, rank, meta=(Meta(tuple(rank.shape), torch.int32),))
    else:
        order = order.shrink((None, (rank, rank + 1)))
    values, at = rows.pick(order)
    return (values, at) if keepdim or rows.is_scalar else (values.squeeze(rows.dim), at.squeeze(rows.dim))


@lowers(aten.kthvalue.default)
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _selected(Rows(x, dim), k - 1, keepdim)


def _median_rank(rows: Tensor, skip_nan: bool) -> Tensor:
    """The rank of the lower median. A NaN is the median of its row, unless NaNs are skipped: it sorts last, so then
    the rank counts only numbers, and otherwise it is the first NaN's."""
    size = rows.shape[1]
    numbers = (rows == rows).sum(1, keepdim=True, dtype=dtypes.int32)
    if skip_nan:
        return ((numbers - 1) // 2).maximum(0)
    return (numbers < size).where(numbers, (numbers - 1) // 2)


def _median_dim(x: Tensor, dim: int, keepdim: bool, skip_nan: bool) -> tuple[Tensor, Tensor]:
    rows = Rows(x, dim)
    if 0 in rows.rows.shape:
        shape = tuple(1 if d == rows.dim else s for d, s in enumerate(rows.x.shape))
        empty = zeros(shape if keepdim else rows.lead, x.dtype)
        return empty, empty.cast(dtypes.int64)
    is_float = dtypes.is_float(x.dtype)
    return _selected(rows, _median_rank(rows.rows, skip_nan) if is_float else (rows.size - 1) // 2, keepdim)


def _median_all(x: Tensor, skip_nan: bool) -> Tensor:
    if not x.numel():
        fill = float("nan") if dtypes.is_float(x.dtype) else x.dtype.min
        return Tensor.full((), fill, dtype=x.dtype, buffer=False)
    return _median_dim(x.reshape(x.numel()), 0, False, skip_nan)[0].reshape(())


MEDIANS = [
    (aten.median.default, aten.median.dim, False),
    (aten.nanmedian.default, aten.nanmedian.dim, True),
]


def _register_medians(of_all, of_dim, skip_nan: bool) -> None:
    lowers(of_all)(lambda x: _median_all(x, skip_nan))
    lowers(of_dim)(lambda x, dim, keepdim=False: _median_dim(x, dim, keepdim, skip_nan))


for row in MEDIANS:
    _register_medians(*row)


@lowers(aten.mode.default)
def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent values, at its last position. In sorted order a value's run ends where the
    search from the right finds it; the longest run wins, the earliest of equals."""
    rows = Rows(x, dim)
    count, size = rows.rows.shape
    keys = sort_keys(rows.rows, False)
    order = sort_order(keys).contiguous()
    ordered = gather(keys.contiguous(), 1, order, meta=(Meta((count, size), torch.int64),)).contiguous()
    starts, ends = (search(ordered, ordered, right=right) for right in (False, True))
    lengths = (ends - starts).contiguous()
    best = lengths == lengths.max(1, keepdim=True)
    first = best.where(positions(size, 1, 2), size).min(1, keepdim=True)
    length = lengths.max(1, keepdim=True)
    return _selected(rows, (first + length - 1).contiguous(), keepdim, order)


@lowers(aten.histc.default)
def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0, *, meta) -> Tensor:
    if not x.numel():
        return zeros((bins,), x.dtype)
    kept = accumulator(x.dtype)

    def rounded(value: Tensor) -> Tensor:
        """Half types are, at every step."""
        return value.cast(x.dtype).cast(kept)

    values = x.reshape(x.numel()).cast(kept)
    low, high = (rounded(Tensor.full((), end, dtype=kept)) for end in (min, max))
    if min == max:
        low, high = values.min(), values.max()
        flat = low == high
        low, high = flat.where(rounded(low - 1), low), flat.where(rounded(high + 1), high)
    inside = (values >= low) & (values <= high)
    many = torch.tensor(bins, dtype=meta[0].dtype).item()
    at = rounded(rounded(rounded(values - low) * many) / rounded(high - low)).cast(dtypes.int32).minimum(bins - 1)
    counts = update(zeros((bins + 1,), dtypes.int32), 0, inside.where(at, bins), 1, "sum")
    return counts.shrink(((0, bins),)).cast(x.dtype)
