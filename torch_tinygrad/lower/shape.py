"""Operators that only move values: joining, repeating, flipping, triangles, diagonals, and the copying forms and
backwards of views. Everything is movement and masks, so that it fuses into its neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tinygrad import Tensor

from torch_tinygrad.kernels.arrays import cast, positions, zeros

from .registry import TO_TINY, Meta, lowers

aten = torch.ops.aten


def positive(dim: int, ndim: int) -> int:
    """A dimension counted from the front; 0-dim tensors count as having one."""
    return dim % max(ndim, 1)


@lowers(aten.cat.default, fuses=True)
def cat(tensors: list[Tensor], dim: int = 0, *, meta: tuple[Meta, ...]) -> Tensor:
    shape, dtype = meta[0].shape, meta[0].tiny
    dim = positive(dim, len(shape))
    # A 1-dim empty tensor may be joined with anything.
    parts = [cast(t, dtype) for t in tensors if 0 not in t.shape]
    if not parts:
        return zeros(shape, dtype)
    return parts[0] if len(parts) == 1 else parts[0].cat(*parts[1:], dim=dim)


@lowers(aten.stack.default, aten._stack.default, fuses=True)
def stack(tensors: list[Tensor], dim: int = 0, *, meta: tuple[Meta, ...]) -> Tensor:
    dim = positive(dim, len(meta[0].shape))
    return cat([t.unsqueeze(dim) for t in tensors], dim, meta=meta)


@lowers(aten.block_diag.default)
def block_diag(tensors: list[Tensor], *, meta: tuple[Meta, ...]) -> Tensor:
    rows, columns = meta[0].shape
    blocks, column = [], 0
    for t in tensors:
        block = cast(t.reshape((1,) * (2 - t.ndim) + tuple(t.shape)), meta[0].tiny)
        height, width = block.shape
        if height:
            blocks.append(block.pad((None, (column, columns - column - width))))
        column += width
    blocks = [b for b in blocks if 0 not in b.shape]
    return Tensor.cat(*blocks, dim=0) if blocks else zeros((rows, columns), meta[0].tiny)


@lowers(aten.repeat.default)
def repeat(x: Tensor, repeats: list[int]) -> Tensor:
    if 0 in repeats or 0 in x.shape:
        shape = (1,) * (len(repeats) - x.ndim) + tuple(x.shape)
        return zeros(tuple(s * r for s, r in zip(shape, repeats, strict=True)), x.dtype)
    return x.repeat(*repeats) if repeats else x


@lowers(aten.flip.default, fuses=True)
def flip(x: Tensor, dims: list[int]) -> Tensor:
    return x.flip(*(positive(d, x.ndim) for d in dims)) if dims and x.ndim else x


@lowers(aten.roll.default, fuses=True)
def roll(x: Tensor, shifts: list[int], dims: Sequence[int] = ()) -> Tensor:
    if 0 in x.shape:
        return x
    if not dims:
        return _roll_one(x.flatten(), shifts[0], 0).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _roll_one(x, shift, positive(dim, x.ndim))
    return x


def _roll_one(x: Tensor, shift: int, dim: int) -> Tensor:
    shift %= x.shape[dim]
    if not shift:
        return x
    head, tail = x.split([x.shape[dim] - shift, shift], dim)
    return tail.cat(head, dim=dim)


@lowers(aten.rot90.default)
def rot90(x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    a, b = (positive(d, x.ndim) for d in dims)
    return [x, x.flip(b).transpose(a, b), x.flip(a, b), x.flip(a).transpose(a, b)][k % 4]


def _below(x: Tensor, diagonal: int) -> Tensor:
    """Where column - row <= diagonal."""
    rows, columns = positions(x.shape[-2], 0, 2), positions(x.shape[-1], 1, 2)
    return columns - rows <= max(min(diagonal, 2**30), -(2**30))


@lowers(aten.tril.default, fuses=True)
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    return _below(x, diagonal).where(x, x.zeros_like(buffer=False)) if 0 not in x.shape else x


@lowers(aten.triu.default, fuses=True)
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    return _below(x, diagonal - 1).where(x.zeros_like(buffer=False), x) if 0 not in x.shape else x


def take_diagonal(x: Tensor, offset: int, dim1: int, dim2: int) -> Tensor:
    """`torch.diagonal` as movement: rows of a padded matrix, re-read with a row length longer by one."""
    dim1, dim2 = positive(dim1, x.ndim), positive(dim2, x.ndim)
    x = x.permute(*(d for d in range(x.ndim) if d not in (dim1, dim2)), dim1, dim2)
    rows, columns = x.shape[-2:]
    row, column = max(-offset, 0), max(offset, 0)
    length = max(min(rows - row, columns - column), 0)
    lead = tuple(x.shape[:-2])
    if not length or 0 in lead:
        return zeros((*lead, length), x.dtype)
    window = tuple((0, s) for s in lead)
    x = x.shrink((*window, (row, row + length), (column, column + length))).reshape(*lead, length * length)
    x = x.pad((*(None for _ in lead), (0, length))).reshape(*lead, length, length + 1)
    return x.shrink((*window, (0, length), (0, 1))).reshape(*lead, length)


def put_diagonal(shape: tuple[int, ...], src: Tensor, offset: int, dim1: int, dim2: int, base: Tensor | None) -> Tensor:
    """`base` (or zeros) of `shape` with `src` written on a diagonal."""
    dim1, dim2 = positive(dim1, len(shape)), positive(dim2, len(shape))
    order = [d for d in range(len(shape)) if d not in (dim1, dim2)] + [dim1, dim2]
    back = tuple(order.index(d) for d in range(len(shape)))
    moved = tuple(shape[d] for d in order)
    rows, columns = moved[-2:]
    row, length = max(-offset, 0), src.shape[-1]
    base = zeros(moved, src.dtype) if base is None else base.permute(*order)
    if 0 in src.shape:
        return base.permute(*back)
    lead = tuple(None for _ in moved[:-2])
    spread = src.unsqueeze(-1).pad((*lead, (row, rows - row - length), None)).expand(*moved)
    here = positions(columns, 1, 2) - positions(rows, 0, 2) == offset
    inside = (positions(rows, 0, 2) >= row) & (positions(rows, 0, 2) < row + length)
    return (here & inside).where(spread, base).permute(*back)


lowers(aten.diagonal_copy.default)(
    lambda x, offset=0, dim1=0, dim2=1: take_diagonal(x, offset, dim1, dim2),
)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return put_diagonal(tuple(x.shape), cast(src, x.dtype), offset, dim1, dim2, x)


@lowers(aten.diagonal_backward.default, fuses=True)
def diagonal_backward(grad: Tensor, input_sizes: list[int], offset: int, dim1: int, dim2: int) -> Tensor:
    return put_diagonal(tuple(input_sizes), grad, offset, dim1, dim2, None)


@lowers(aten.diag_embed.default)
def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1, *, meta: tuple[Meta, ...]) -> Tensor:
    return put_diagonal(meta[0].shape, x, offset, dim1, dim2, None)


def _slice_range(size: int, start: int | None, end: int | None, step: int) -> range:
    return range(size)[slice(start, end, step)]


def put_slice(shape: tuple[int, ...], src: Tensor, dim: int, taken: range, base: Tensor | None) -> Tensor:
    """`base` (or zeros) of `shape` with `src` written at the positions `taken` of `dim`."""
    if not len(taken) or 0 in src.shape:
        return zeros(shape, src.dtype) if base is None else base
    if len(taken) == shape[dim]:
        return src
    ndim, size, step = len(shape), shape[dim], taken.step
    if step > 1:
        src = src.unsqueeze(dim + 1).pad(tuple((0, step - 1) if d == dim + 1 else None for d in range(ndim + 1)))
        src = src.reshape(tuple(len(taken) * step if d == dim else s for d, s in enumerate(shape)))
        keep = min(len(taken) * step, size - taken.start)
        src = src.shrink(tuple((0, keep) if d == dim else (0, s) for d, s in enumerate(src.shape)))
    after = size - taken.start - src.shape[dim]
    spread = src.pad(tuple((taken.start, after) if d == dim else None for d in range(ndim)))
    if base is None:
        return spread
    at = positions(size, dim, ndim)
    inside = (at >= taken.start) & (at <= taken[-1])
    return (inside & ((at - taken.start) % step == 0) if step > 1 else inside).where(spread, base)


@lowers(aten.slice_scatter.default)
def slice_scatter(
    x: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    dim = positive(dim, x.ndim)
    taken = _slice_range(x.shape[dim], start, end, step)
    src = cast(src, x.dtype).expand(tuple(len(taken) if d == dim else s for d, s in enumerate(x.shape)))
    return put_slice(tuple(x.shape), src, dim, taken, x)


@lowers(aten.slice_backward.default, fuses=True)
def slice_backward(grad: Tensor, input_sizes: list[int], dim: int, start: int, end: int, step: int) -> Tensor:
    dim = positive(dim, len(input_sizes))
    return put_slice(tuple(input_sizes), grad, dim, _slice_range(input_sizes[dim], start, end, step), None)


@lowers(aten.select_scatter.default)
def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    dim = positive(dim, x.ndim)
    index %= x.shape[dim]
    return put_slice(tuple(x.shape), cast(src, x.dtype).unsqueeze(dim), dim, range(index, index + 1), x)


@lowers(aten.select_backward.default, fuses=True)
def select_backward(grad: Tensor, input_sizes: list[int], dim: int, index: int) -> Tensor:
    dim = positive(dim, len(input_sizes))
    index %= input_sizes[dim]
    return put_slice(tuple(input_sizes), grad.unsqueeze(dim), dim, range(index, index + 1), None)


def _reshaped(x: Tensor, *_, meta: tuple[Meta, ...]) -> Tensor:
    return x.reshape(meta[0].shape)


lowers(
    aten._unsafe_view.default,
    aten._reshape_copy.default,
    aten.view_copy.default,
    aten.squeeze_copy.default,
    aten.squeeze_copy.dim,
    aten.squeeze_copy.dims,
    aten.unsqueeze_copy.default,
)(_reshaped)

lowers(aten.alias_copy.default, aten.detach_copy.default, aten.lift_fresh_copy.default)(lambda x: x)


@lowers(aten.view_copy.dtype)
def view_copy_dtype(x: Tensor, dtype: torch.dtype, *, meta: tuple[Meta, ...]) -> Tensor:
    if 0 in meta[0].shape:
        return zeros(meta[0].shape, meta[0].tiny)
    return x.contiguous().bitcast(TO_TINY[dtype]).reshape(meta[0].shape)


@lowers(aten.expand_copy.default)
def expand_copy(x: Tensor, size: list[int], *, meta: tuple[Meta, ...]) -> Tensor:
    return x.reshape((1,) * (len(size) - x.ndim) + tuple(x.shape)).expand(meta[0].shape)


@lowers(aten.permute_copy.default)
def permute_copy(x: Tensor, dims: list[int]) -> Tensor:
    return x.permute(*(positive(d, x.ndim) for d in dims)) if dims else x


@lowers(aten.transpose_copy.int)
def transpose_copy(x: Tensor, dim0: int, dim1: int) -> Tensor:
    return x.transpose(dim0, dim1) if x.ndim > 1 else x


@lowers(aten.t_copy.default)
def t_copy(x: Tensor) -> Tensor:
    return x.transpose(0, 1) if x.ndim > 1 else x


@lowers(aten.slice_copy.Tensor)
def slice_copy(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    dim = positive(dim, x.ndim)
    return x[tuple(slice(start, end, step) if d == dim else slice(None) for d in range(dim + 1))]


@lowers(aten.narrow_copy.default)
def narrow_copy(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    start = start % x.shape[positive(dim, x.ndim)] if start < 0 else start
    return slice_copy(x, dim, start, start + length)


@lowers(aten.select_copy.int)
def select_copy(x: Tensor, dim: int, index: int) -> Tensor:
    dim = positive(dim, x.ndim)
    return x[tuple(index if d == dim else slice(None) for d in range(dim + 1))]


@lowers(aten.unbind_copy.int)
def unbind_copy(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(select_copy(x, dim, i) for i in range(x.shape[positive(dim, x.ndim)]))


@lowers(aten.split_copy.Tensor)
def split_copy(x: Tensor, split_size: int, dim: int = 0) -> tuple[Tensor, ...]:
    size = x.shape[positive(dim, x.ndim)]
    starts = range(0, size, split_size) if size and split_size else (0,)
    return tuple(slice_copy(x, dim, start, min(start + split_size, size)) for start in starts)


@lowers(aten.split_with_sizes_copy.default)
def split_with_sizes_copy(x: Tensor, split_sizes: list[int], dim: int = 0) -> tuple[Tensor, ...]:
    starts = [sum(split_sizes[:i]) for i in range(len(split_sizes))]
    return tuple(slice_copy(x, dim, start, start + size) for start, size in zip(starts, split_sizes, strict=True))


@lowers(aten.unfold_copy.default)
def unfold_copy(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    if not x.ndim:
        return x.reshape(1).shrink(((0, size),))
    dim = positive(dimension, x.ndim)
    return x.unfold(dim, size, step)
