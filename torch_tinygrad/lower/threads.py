"""How kernels of our own spread over threads: in full groups where a device has many, not at all where it has few."""

from __future__ import annotations

from tinygrad import Device, Tensor
from tinygrad.uop.ops import AxisType, UOp

# Where the device has many threads, they come in groups of this many, and at most so many share one row.
LANES = 32
PIECES = 512


def in_parallel(x: Tensor) -> bool:
    """Whether the device runs threads in groups, and needs many of them to be fast."""
    device = x.device[0] if isinstance(x.device, tuple) else x.device or Device.DEFAULT
    return Device[device].renderer.has_local


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
