"""The hardware behind the device: tinygrad's default device, and buffers on it where it has memory of its own."""

from __future__ import annotations

from tinygrad import Device, dtypes
from tinygrad.device import Buffer


def device_name(index: int) -> str:
    """tinygrad's name for `tiny:index`."""
    return Device.DEFAULT if index == 0 else f"{Device.DEFAULT}:{index}"


def is_host() -> bool:
    """Whether kernels read and write the host's own memory."""
    return Device.DEFAULT.split(":")[0] == "CPU"


def new_buffer(index: int, nbytes: int) -> Buffer:
    return Buffer(device_name(index), nbytes, dtypes.uint8).ensure_allocated()


def upload(index: int, data: memoryview) -> Buffer:
    buffer = new_buffer(index, data.nbytes)
    buffer.allocator._copyin(buffer._buf, data.cast("B"))
    return buffer


def download(buffer: Buffer, offset: int, destination: memoryview) -> None:
    part = buffer.view(destination.nbytes, dtypes.uint8, offset).ensure_allocated()
    part.allocator._copyout(destination.cast("B"), part._buf)
