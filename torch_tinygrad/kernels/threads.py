"""What kernels of our own need: buffers to read and write, and threads, in full groups where a device has many."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tinygrad import Tensor
from tinygrad.uop.ops import AxisType, Ops, UOp

from torch_tinygrad.target import target
from torch_tinygrad.trace.decisions import decide

# Where the device has many threads, they come in groups of this many, and at most so many share one row.
LANES = 32
PIECES = 512
# Elements below which a kernel of its own costs more than what it saves.
SMALL = 2048


def in_parallel(x: Tensor) -> bool:
    """Whether its device runs threads in groups."""
    return target(x.device).has_groups


def lanes_of(count: int) -> int:
    """A number of threads near `count` that fills groups."""
    return min(PIECES, max(count // LANES, 1) * LANES)


def thread_ranges(size: int, axis: int, parallel: bool) -> tuple[UOp, list[UOp]]:
    """An index over `size` threads and the ranges it is made of, numbered from `axis`: groups of threads where the
    device has them and `size` fills them."""
    if not parallel or size % LANES:
        index = UOp.range(size, axis)
        return index, [index]
    group, lane = UOp.range(size // LANES, axis, AxisType.GLOBAL), UOp.range(LANES, axis + 1, AxisType.LOCAL)
    return group * LANES + lane, [group, lane]


def fresh(x: Tensor) -> Tensor:
    """A copy of `x` in a buffer that nothing else reads, so that a kernel may write into it."""
    buffer = Tensor.empty(*x.shape, dtype=x.dtype, device=x.device).uop
    return Tensor(buffer.after(buffer.store(x.uop)))


def stored(x: Tensor, overwritten: Collection[UOp] = ()) -> Tensor:
    """`x` in a buffer that a kernel may read. Constants have none, and expressions may turn out to be constants. A
    kernel that writes in place reads a copy of what it has `overwritten`: names of the same memory before."""
    return x if is_stored(x) and unshaped(x.uop).buf_uop not in overwritten else fresh(x)


def before_sum(x: Tensor) -> Tensor:
    """What is expensive to compute, on its way into a sum: where kernels are loops, those of sums are not vectorised,
    and it is computed in a loop of its own."""
    return x if in_parallel(x) or decide("fuse into a sum", x.numel() < SMALL) else stored(x)


def is_stored(x: Tensor) -> bool:
    return unshaped(x.uop).op in (Ops.BUFFER, Ops.PARAM, Ops.AFTER)


def unshaped(value: UOp) -> UOp:
    """What was reshaped, however often, to give this value."""
    while value.op is Ops.RESHAPE:
        value = value.src[0]
    return value


def call(kernel: Callable[..., UOp], out: Tensor, *inputs: Tensor, overwritten: Collection[UOp] = ()) -> Tensor:
    """`out` after a kernel wrote into it; it must be a buffer of its own: `fresh`, `Tensor.empty` or another result, or
    the next version of one that `overwritten` names."""
    return Tensor.custom_kernel(out, *(stored(t, overwritten) for t in inputs), fxn=kernel)[0]
