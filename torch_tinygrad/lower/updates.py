"""Writing by index: updates of slots that may name the same slot more than once.

tinygrad has no scatter. This one is a kernel that walks the updates in order, for every independent lane (the
dimensions that are not indexed) in parallel: the last write wins and sums are deterministic, as on PyTorch's CPU, no
atomics are needed, and the cost is the number of updates plus the number of slots. Where lanes alone do not occupy the
device, its threads also share out the slots: each walks all updates and makes those of its own slots."""

from __future__ import annotations

import math
from collections.abc import Callable

from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp

from .registry import cast
from .shape import positions, strides_of
from .threads import LANES, in_parallel, thread_ranges

# Elementwise chains this short are cheaper than a kernel of their own, and fuse with their neighbours.
UNROLLED_UPDATES = 4
# Lanes and owners of slots together should be about this many threads.
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


def accumulator(dtype: DType, how: str) -> DType:
    """The dtype in which repeated updates are combined."""
    if how in ("sum", "prod"):
        if dtype in (dtypes.float16, dtypes.bfloat16):
            return dtypes.float32
        if dtype == dtypes.bool:
            return dtypes.int32
    return dtype


def fresh(x: Tensor) -> Tensor:
    """A copy of `x` in a buffer that nothing else reads, so that a kernel may write into it."""
    buffer = Tensor.empty(*x.shape, dtype=x.dtype, device=x.device).uop
    return Tensor(buffer.after(buffer.store(x.uop)))


def stored(x: Tensor) -> Tensor:
    """`x` in a buffer that a kernel may read. Constants have none, and expressions may turn out to be constants."""
    value = x.uop
    while value.op is Ops.RESHAPE:
        value = value.src[0]
    return x if value.op in (Ops.BUFFER, Ops.PARAM, Ops.AFTER) else fresh(x)


def call(kernel: Callable[..., UOp], out: Tensor, *inputs: Tensor) -> Tensor:
    """`out` after a kernel wrote into it; it must be a buffer of its own: `fresh`, `Tensor.empty` or another result."""
    return Tensor.custom_kernel(out, *(stored(t) for t in inputs), fxn=kernel)[0]


def update(
    base: Tensor, dim: int, index: Tensor, src: Tensor | float, how: str, box: tuple[int, ...] | None = None
) -> Tensor:
    """For every coordinate c of `box`, in order along `dim`: combines `src[c]` into `base` at c with `index[c]` in
    place of c[dim]. `box` is the shape of the updates; `index` and `src` broadcast to it. Negative indices wrap."""
    box = box or tuple(index.shape)
    if 0 in box or 0 in base.shape:
        return base
    dtype = accumulator(base.dtype, how)
    start, src = cast(base, dtype), cast(src, dtype)
    if box[dim] <= UNROLLED_UPDATES:
        result = _unrolled(start, dim, index, src, how, box)
    else:
        result = _walked(fresh(start), dim, index, src, how, box)
    return cast(result, base.dtype) if base.dtype != dtypes.bool or dtype == base.dtype else result != 0


def _unrolled(base: Tensor, dim: int, index: Tensor, src: Tensor | float, how: str, box: tuple[int, ...]) -> Tensor:
    size, ndim = base.shape[dim], base.ndim
    slot = positions(size, dim, ndim)
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
        here = (at < 0).where(at + size, at) == slot
        here = here if inside is None else here & inside
        new = nth(src, n) if isinstance(src, Tensor) else Tensor.full((1,) * ndim, src, dtype=base.dtype, buffer=False)
        base = here.where(COMBINE[how](base, new.expand(base.shape)), base)
    return base


def _walked(out: Tensor, dim: int, index: Tensor, src: Tensor | float, how: str, box: tuple[int, ...]) -> Tensor:
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
        slot = index[_offset(at, shapes[1])].load().cast(wide)
        slot = (slot < 0).where(slot + size, slot).maximum(0).minimum(size - 1)
        steps = strides_of(shapes[0])
        place = sum((at[d] * steps[d] for d in range(len(box)) if d != dim), slot.cast(dtypes.weakint) * steps[dim])
        new = given[0][_offset(at, shapes[2])].load() if given else UOp.const(src, out.dtype)
        owner, shares = thread_ranges(owners, len(box), True) if owners > 1 else (None, [])
        if owner is not None:
            place = place.valid((slot & (owners - 1)).eq(owner.cast(wide)))
        old = out.after(at[dim])[place].load() if how != "set" else None
        write = out[place].store(COMBINE[how](old, new)).end(*at, *shares)
        return write.sink(arg=KernelInfo(name=f"update_{how}", opts_to_apply=() if shares else None))

    return call(kernel, *tensors)


def _offset(at: list[UOp], shape: tuple[int, ...]) -> UOp:
    """Where coordinates fall in a contiguous buffer of `shape`, whose dimensions of size 1 broadcast."""
    return sum((c * step for c, size, step in zip(at, shape, strides_of(shape), strict=True) if size > 1), UOp.const(0))
