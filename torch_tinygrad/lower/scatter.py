"""Operators that write by index. Each one only says which cells, which values and how they combine; `updates` does
the writing. Masks stay lazy: where a mask is true is never asked on the host."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels.arrays import cast, take_rows, zeros
from torch_tinygrad.kernels.counting import running_count

from ..kernels.updates import Update, accumulator, identity, update
from .cast import convert
from .gather import join_indices, take_flat
from .maths import operand
from .nonzero import true_positions
from .registry import Meta, is_number, lowers
from .shape import positive

aten = torch.ops.aten

REDUCE_NAMES = {"add": "sum", "multiply": "prod"}


def _at_least_1d(*tensors):
    return [t.reshape(1) if isinstance(t, Tensor) and not t.ndim else t for t in tensors]


def _value(value, ndim: int):
    """A number, or a 0-dim tensor shaped to broadcast."""
    return value.reshape((1,) * ndim) if isinstance(value, Tensor) else value


def reduce_into(
    base: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | float,
    how: str,
    include_self: bool,
    box: tuple[int, ...],
    shape: tuple[int, ...],
    rounds: bool = False,
) -> Tensor | Update:
    """Combines updates with `how`, which may also be the mean. The result has `shape`, as what is updated has."""
    if 0 in box:
        return base.reshape(shape)
    if how != "mean" and include_self:
        return Update(
            base, dim, index, src, how, box, rounds, lambda x: x.reshape(base.shape), lambda x: x.reshape(shape)
        )
    start = base if include_self else update(base, dim, index, identity(base.dtype, how), "set", box)
    if how != "mean":
        return update(start, dim, index, src, how, box, rounds).reshape(shape)
    total = update(start, dim, index, src, "sum", box, rounds)
    counts = Tensor.full(base.shape, 1 if include_self else 0, dtype=dtypes.int32, buffer=False)
    counts = update(counts, dim, index, 1, "sum", box).maximum(1).cast(base.dtype)
    if not dtypes.is_float(base.dtype):
        return (total // counts).reshape(shape)
    wide = accumulator(base.dtype, "sum")
    return (cast(total, wide) / cast(counts, wide)).reshape(shape)


@lowers(aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce, lifts=("value",))
def scatter(x: Tensor, dim: int, index: Tensor, src: Tensor | float, *, reduce: str | None = None) -> Tensor | Update:
    how = REDUCE_NAMES[reduce] if reduce else "set"
    return _scatter(x, dim, index, src, how, True)


@lowers(aten.scatter_add.default)
def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor | Update:
    return _scatter(x, dim, index, src, "sum", True)


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor | Update:
    return _scatter(x, dim, index, src, reduce, include_self)


def _scatter(x: Tensor, dim: int, index: Tensor, src: Tensor | float, how: str, include_self: bool) -> Tensor | Update:
    if 0 in index.shape:
        return x
    base, index, given = _at_least_1d(x, index, src)
    is_value = not isinstance(src, Tensor) or (not src.ndim and x.ndim > 0)
    given = _value(src, base.ndim) if is_value else given.shrink(tuple((0, s) for s in index.shape))
    box = tuple(index.shape)
    return reduce_into(base, positive(dim, x.ndim), index, given, how, include_self, box, tuple(x.shape))


def _along(
    x: Tensor, dim: int, index: Tensor, source: Tensor | float | None, how: str, include_self=True, rounds=True
) -> Tensor | Update:
    """Updates whole slices: `index` is 1-dim and the same for every lane."""
    base, index, source = _at_least_1d(x, index, source)
    dim = positive(dim, base.ndim)
    box = tuple(index.shape[0] if d == dim else s for d, s in enumerate(base.shape))
    lanes = index.reshape(tuple(index.shape[0] if d == dim else 1 for d in range(base.ndim)))
    source = source.reshape(box) if isinstance(source, Tensor) and source.numel() == math.prod(box) else source
    return reduce_into(base, dim, lanes, source, how, include_self, box, tuple(x.shape), rounds)


@lowers(aten.index_add.default, lifts=("alpha",))
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor | Update:
    """Rows of half types are added up before they are rounded, as on the CPU, but nothing else is."""
    scaled, is_rows = source, x.ndim > 1 and positive(dim, x.ndim) == 0 and is_number(alpha) and alpha == 1
    if isinstance(alpha, Tensor) or alpha != 1:
        wide, alpha = accumulator(source.dtype, "sum"), operand(alpha, source.dtype)
        scaled = cast(cast(source, wide) * cast(alpha, wide), source.dtype)
    return _along(x, dim, index, scaled, "sum", rounds=not is_rows)


@lowers(aten.index_copy.default)
def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor | Update:
    return _along(x, dim, index, source, "set")


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, lifts=("value",))
def index_fill(x: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor | Update:
    return _along(x, dim, index, _value(value, max(x.ndim, 1)), "set")


@lowers(aten.index_reduce.default)
def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor | Update:
    return _along(x, dim, index, source, reduce, include_self)


@lowers(aten.put.default)
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat = x.reshape(x.numel())
    how = "sum" if accumulate else "set"
    updated = update(flat, 0, index.reshape(index.numel()), source.reshape(source.numel()), how, rounds=True)
    return updated.reshape(x.shape)


@lowers(aten.index_put.default, aten._unsafe_index_put.default, aten._index_put_impl.default)
def index_put(
    x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor | Update:
    given = [i for i in indices if i is not None]
    values = convert(values, x.dtype)
    if any(i.dtype in (dtypes.bool, dtypes.uint8) for i in given):
        if len(given) > 1:
            raise NotImplementedError("index_put: a mask beside other indices must be turned into its positions first")
        at = next(d for d, i in enumerate(indices) if i is not None)
        return _mask_put(x, at, given[0] != 0, values, accumulate)
    if not given:
        return x + values if accumulate else values.expand(x.shape)
    joined = join_indices(tuple(x.shape), indices)
    base, at, index = joined.join(x), joined.at, joined.index
    if 0 in index.shape or 0 in base.shape:
        return x
    before, after = tuple(base.shape[:at]), tuple(base.shape[at + 1 :])
    whole = (*before, *index.shape, *after)
    values = values.reshape((1,) * (len(whole) - values.ndim) + tuple(values.shape[max(values.ndim - len(whole), 0) :]))
    middle = values.shape[at : at + index.ndim]
    if any(s > 1 for s in middle):
        middle = (index.numel(),)
        values = values.expand((*values.shape[:at], *index.shape, *values.shape[at + index.ndim :]))
    else:
        middle = (1,)
    values = values.reshape((*values.shape[:at], *middle, *values.shape[at + index.ndim :]))
    lanes = index.reshape(tuple(index.numel() if d == at else 1 for d in range(base.ndim)))
    box = (*before, index.numel(), *after)
    how, shape = "sum" if accumulate else "set", tuple(x.shape)
    return Update(x, at, lanes, values, how, box, True, joined.join, lambda cells: joined.split(cells, shape))


def _mask_put(x: Tensor, at: int, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """`x[:, ..., mask] = values`: the i-th true element takes the i-th value, found by the mask's running count."""
    if 0 in x.shape or 0 in values.shape:
        return x
    after = x.ndim - at - mask.ndim
    while values.ndim > at + 1 + after:
        values = values.squeeze(0)
    axis = values.ndim - 1 - after
    if axis >= 0 and values.shape[axis] > 1:
        ranks = running_count(mask.reshape(1, mask.numel())).reshape(mask.shape) - 1
        values = take_rows(values, axis, ranks.maximum(0))
    elif axis >= 0:
        values = values.reshape((*values.shape[:axis], *(1 for _ in mask.shape), *values.shape[axis + 1 :]))
    spread = mask.reshape((1,) * at + tuple(mask.shape) + (1,) * after)
    if accumulate and x.dtype == dtypes.bool:
        return spread.where(x | values, x)
    return spread.where(x + values if accumulate else values, x)


@lowers(aten.masked_scatter.default)
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor, *, meta: tuple[Meta, ...]) -> Tensor:
    shape = meta[0].shape
    source = convert(source, x.dtype)
    if 0 in shape or not source.numel():
        return x.expand(shape)
    mask, x = mask._broadcast_to(shape), x._broadcast_to(shape)
    ranks = running_count(mask.reshape(1, mask.numel())).reshape(shape) - 1
    return mask.where(take_flat(source.flatten(), ranks.maximum(0)), x)


@lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: list[int]) -> Tensor:
    count = math.prod(sizes)
    if not count or not grad.numel():
        return zeros(tuple(sizes), grad.dtype)
    mask = mask._broadcast_to(grad.shape).flatten()
    at = true_positions(mask, count)
    taken = take_flat(grad.flatten(), at.minimum(grad.numel() - 1))
    return (at < grad.numel()).where(taken, 0).reshape(tuple(sizes))
