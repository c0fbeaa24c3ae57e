"""Writing by index: updates of cells that may name the same cell more than once.

tinygrad has no scatter. This one is a kernel that walks the updates in order, for every independent lane (the
dimensions that are not indexed) in parallel: the last write wins and sums are deterministic, as on PyTorch's CPU, no
atomics are needed, and the cost is the number of updates plus the number of cells. Where lanes alone do not occupy the
device, its threads also share out the cells, each walking all updates for its own, or, where one long list of updates
serves all lanes, they share out the list after sorting it by cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType
from tinygrad.uop.ops import AxisType, KernelInfo, UOp

from torch_tinygrad.trace.geometry import strides_of
from torch_tinygrad.trace.nodes import Region

from .arrays import cast, positions, take_rows
from .sorting import sort_order
from .threads import LANES, call, fresh, in_parallel, is_stored, stored, thread_ranges

# Elementwise chains this short are cheaper than a kernel of their own, and fuse with their neighbours.
UNROLLED_UPDATES = 4
# Lanes and owners of cells together should be about this many threads.
THREADS = 4096


def _greater(old, new):
    return ((old < new) | (new != new)).where(new, old)


def _smaller(old, new):
    return ((new < old) | (new != new)).where(new, old)


COMBINE: dict[str, Callable] = {
    "set": lambda old, new: new,
    "sum": lambda old, new: old + new,
    "prod": lambda old, new: old * new,
    "amax": _greater,
    "amin": _smaller,
}


HALVES = (dtypes.float16, dtypes.bfloat16)


def combined(how: str, old, new):
    """Of tensors, or of loaded elements."""
    if how not in ("sum", "prod") or old.dtype not in HALVES:
        return COMBINE[how](old, new)
    wide = dtypes.float32
    return COMBINE[how](old.cast(wide), new.cast(wide)).cast(old.dtype)


def accumulator(dtype: DType, how: str) -> DType:
    """The dtype in which repeated updates are combined."""
    if how in ("sum", "prod"):
        if dtype in HALVES:
            return dtypes.float32
        if dtype == dtypes.bool:
            return dtypes.int32
    return dtype


@dataclass(frozen=True)
class Update:
    """Cells of `base` that are combined with values, as `update` says it: as a value of its own, or in a buffer that
    holds `base`. `join` and `split` turn it to the shape that `dim` and `box` are about, and back."""

    base: Tensor
    dim: int
    index: Tensor
    src: Tensor | float
    how: str
    box: tuple[int, ...]
    rounds: bool = False
    join: Callable[[Tensor], Tensor] = lambda x: x
    split: Callable[[Tensor], Tensor] = lambda x: x

    def value(self) -> Tensor:
        joined = self.join(self.base)
        return self.split(update(joined, self.dim, self.index, self.src, self.how, self.box, self.rounds))

    def into(self, buffer: Tensor, overwritten: Collection[UOp]) -> Tensor | None:
        """The buffer after the update was made in it, or None where that takes a copy. `overwritten` are names of the
        same memory before."""
        cells = self.join(buffer)
        dtype = combined_in(cells.dtype, self.how, self.rounds)
        is_sorted = in_parallel(cells) and _is_one_long_list(cells, self.dim, self.index, self.box)
        if dtype != cells.dtype or is_sorted or not is_stored(cells):
            return None
        src = cast(self.src, accumulator(dtype, self.how))
        return self.split(_walked(cells, self.dim, self.index, src, self.how, self.box, overwritten))


def settled(result):
    """A lowering's result as a value."""
    return result.value() if isinstance(result, Update) else result


def combined_in(dtype: DType, how: str, rounds: bool) -> DType:
    """The dtype that cells have while they are updated."""
    return dtype if rounds and dtype in HALVES else accumulator(dtype, how)


def update(
    base: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | float,
    how: str,
    box: tuple[int, ...] | None = None,
    rounds: bool = False,
) -> Tensor:
    """For every coordinate c of `box`, in order along `dim`: combines `src[c]` into `base` at c with `index[c]` in
    place of c[dim]. `box` is the shape of the updates; `index` and `src` broadcast to it. Negative indices wrap.
    Half types are combined in single precision, and rounded in the end or, if it `rounds`, at every step."""
    box = box or tuple(index.shape)
    if 0 in box or 0 in base.shape:
        return base
    dtype = combined_in(base.dtype, how, rounds)
    start, src = cast(base, dtype), cast(src, accumulator(dtype, how))
    if box[dim] <= UNROLLED_UPDATES:
        result = _unrolled(start, dim, index, src, how, box)
    elif in_parallel(base) and _is_one_long_list(base, dim, index, box):
        result = _sorted(start, dim, index, src, how, box)
    else:
        result = _walked(fresh(start), dim, index, src, how, box)
    return cast(result, base.dtype) if base.dtype != dtypes.bool or dtype == base.dtype else result != 0


def _is_one_long_list(base: Tensor, dim: int, index: Tensor, box: tuple[int, ...]) -> bool:
    """Whether the same many updates go to every lane of `base`, and lanes are few."""
    whole = all(box[d] == base.shape[d] for d in range(base.ndim) if d != dim)
    return whole and index.numel() == box[dim] > 2048 and math.prod(box) // box[dim] < THREADS


def _unrolled(base: Tensor, dim: int, index: Tensor, src: Tensor | float, how: str, box: tuple[int, ...]) -> Tensor:
    size, ndim = base.shape[dim], base.ndim
    cell = positions(size, dim, ndim)
    inside = None
    for d in range(ndim):
        if d != dim and box[d] < base.shape[d]:
            within = positions(base.shape[d], d, ndim) < box[d]
            inside = within if inside is None else inside & within
    spread = tuple((0, 0) if d == dim else (0, base.shape[d] - box[d]) for d in range(ndim))

    def nth(t: Tensor, n: int) -> Tensor:
        """The n-th update, padded to the shape of `base`."""
        at = n if t.shape[dim] > 1 else 0
        t = t.shrink(tuple((at, at + 1) if d == dim else (0, s) for d, s in enumerate(t.shape)))
        return t.pad(tuple(p if t.shape[d] > 1 else (0, 0) for d, p in enumerate(spread)))

    for n in range(box[dim]):
        at = nth(index, n).cast(dtypes.int32 if size < 2**31 else dtypes.int64)
        here = (at < 0).where(at + size, at) == cell
        here = here if inside is None else here & inside
        new = nth(src, n) if isinstance(src, Tensor) else Tensor.full((1,) * ndim, src, dtype=base.dtype, buffer=False)
        base = here.where(combined(how, base, new.expand(base.shape)), base)
    return base


def identity(dtype: DType, how: str):
    """What combines into a cell without changing it."""
    if how in ("sum", "mean", "prod"):
        return 1 if how == "prod" else 0
    if dtypes.is_float(dtype):
        return -math.inf if how == "amax" else math.inf
    return dtype.min if how == "amax" else dtype.max


def _sorted(base: Tensor, dim: int, index: Tensor, src: Tensor | float, how: str, box: tuple[int, ...]) -> Tensor:
    """Updates in the order of their cells, cut into pieces that threads walk side by side. A piece owns the cells that
    begin in it; what it has for the cell it starts in the middle of goes to a cell of its own, added in the end."""
    size, count = base.shape[dim], box[dim]
    before, after = tuple(base.shape[:dim]), tuple(base.shape[dim + 1 :])
    cell = index.reshape(count).cast(dtypes.int32)
    cell = (cell < 0).where(cell + size, cell).maximum(0).minimum(size - 1)
    order = sort_order(stored(cell.cast(dtypes.uint32).reshape(1, count)), bits=size.bit_length()).reshape(count)
    order = stored(order)
    cell = stored(take_rows(stored(cell), 0, order))
    src = src if not isinstance(src, Tensor) or src.shape[dim] == 1 else stored(take_rows(src, dim, order))
    pieces = count if how == "set" else min(THREADS, math.ceil(count / 32))
    length = math.ceil(count / pieces)
    carried, spare = size, size + pieces

    def cut(t: Tensor, axis: int, value: int) -> Tensor:
        """The updates' axis cut into pieces, filled up with `value`."""
        fill = pieces * length - count
        t = t.pad(tuple((0, fill) if d == axis else None for d in range(t.ndim)), value=value) if fill else t
        return t.reshape(*t.shape[:axis], pieces, length, *t.shape[axis + 1 :])

    if how == "set":
        following = cell.shrink(((1, count),)).pad(((0, 1),), value=size)
        target, carried, spare = cut((cell == following).where(size, cell), 0, size), size, size
    else:
        cuts = cut(cell, 0, spare)
        last = cuts.shrink((None, (length - 1, length)))
        begun = last.shrink(((0, pieces - 1), None)).pad(((1, 0), None), value=spare)
        target = (cuts == begun).where(positions(pieces, 0, 2) + carried, cuts)
        target = (cuts == spare).where(spare, target)
    fill = 0 if how == "set" else identity(base.dtype, how)
    extra = Tensor.full((*before, spare + 1 - size, *after), fill, dtype=base.dtype, buffer=False)
    out = fresh(base.cat(extra, dim=dim).reshape(*before, 1, spare + 1, *after))
    lanes = target.reshape(*(1 for _ in before), pieces, length, *(1 for _ in after))
    if isinstance(src, Tensor):
        src = cut(src, dim, 0) if src.shape[dim] > 1 else src.unsqueeze(dim)
    whole = (*before, pieces, length, *after)
    out = _walked(out, dim + 1, lanes, src, how, whole).squeeze(dim)
    if how != "set":
        carries = fresh(out.shrink(tuple((carried, spare) if d == dim else None for d in range(out.ndim))))
        at = begun.reshape(*(1 for _ in before), pieces, *(1 for _ in after))
        out = _walked(out, dim, at, carries, how, (*before, pieces, *after))
    return out.shrink(tuple((0, size) if d == dim else None for d in range(out.ndim)))


def _walked(
    out: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | float,
    how: str,
    box: tuple[int, ...],
    overwritten: Collection[UOp] = (),
) -> Tensor:
    tensors = [out, index, *([src] if isinstance(src, Tensor) else [])]
    shapes = [tuple(t.shape) for t in tensors]
    size = shapes[0][dim]
    wide = dtypes.int32 if max(math.prod(s) for s in shapes) < 2**31 else dtypes.int64

    lanes = math.prod(box) // box[dim]
    owners = LANES if in_parallel(out) and lanes < THREADS and size > 1 else 1
    while owners > 1 and owners * 2 * lanes <= THREADS and owners < size:
        owners *= 2

    def kernel(*buffers: UOp) -> UOp:
        out, index, *given = (b.flatten() for b in buffers)
        at = [UOp.range(s, d, AxisType.LOOP if d == dim else AxisType.WEAK) for d, s in enumerate(box)]
        cell = index[_offset(at, shapes[1])].load().cast(wide)
        cell = (cell < 0).where(cell + size, cell).maximum(0).minimum(size - 1)
        steps = [0 if s == 1 else step for s, step in zip(shapes[0], strides_of(shapes[0]), strict=True)]
        place = sum((at[d] * steps[d] for d in range(len(box)) if d != dim), cell.cast(dtypes.weakint) * steps[dim])
        new = given[0][_offset(at, shapes[2])].load() if given else UOp.const(src, out.dtype)
        owner, shares = thread_ranges(owners, len(box), True) if owners > 1 else (None, [])
        if owner is not None:
            place = place.valid((cell & (owners - 1)).eq(owner.cast(wide)))
        old = out.after(at[dim])[place].load() if how != "set" else None
        write = out[place].store(new if old is None else combined(how, old, new)).end(*at, *shares)
        return write.sink(arg=KernelInfo(name=f"update_{how}", opts_to_apply=() if shares else None))

    return call(kernel, *tensors, overwritten=overwritten)


def write_shifted(
    flat: Tensor, region: Region, value: Tensor, shifts: Tensor, position: int, overwritten: Collection[UOp]
) -> Tensor:
    """`flat`, a buffer, with `value` stored over a region that lies `shifts[position]` bytes from its offset."""

    def kernel(*buffers: UOp) -> UOp:
        out, shifts, value = (b.flatten() for b in buffers)
        at = [UOp.range(s, d, AxisType.WEAK) for d, s in enumerate(region.size)]
        moved = shifts[UOp.const(position)].load() // region.dtype.itemsize
        start = moved.cast(dtypes.weakint) + region.offset
        target = sum((c * step for c, step in zip(at, region.stride, strict=True)), start)
        write = out[target].store(value[_offset(at, region.size)].load())
        return (write.end(*at) if at else write).sink(arg=KernelInfo(name="write_shifted"))

    return call(kernel, flat, shifts, value, overwritten=overwritten)


def _offset(at: list[UOp], shape: tuple[int, ...]) -> UOp:
    """Where coordinates fall in a contiguous buffer of `shape`, whose dimensions of size 1 broadcast."""
    return sum((c * step for c, size, step in zip(at, shape, strides_of(shape), strict=True) if size > 1), UOp.const(0))
