"""How kernels of our own spread over threads: in full groups where a device has many, not at all where it has few."""

from __future__ import annotations

from tinygrad import Device, Tensor
from tinygrad.codegen.opt import Opt, OptOps

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


def lane_opts(axis: int, size: int) -> tuple[Opt, ...]:
    """Kernel options that put an axis of `size` threads into groups, where it fills them."""
    return (Opt(OptOps.LOCAL, axis, LANES),) if size % LANES == 0 else ()
