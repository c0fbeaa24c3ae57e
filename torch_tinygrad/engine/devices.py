"""The hardware behind the device: tinygrad's default device, and buffers on it where it has memory of its own."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from tinygrad import Device, dtypes
from tinygrad.device import Buffer, BufferSpec
from tinygrad.helpers import to_mv

from torch_tinygrad import choice
from torch_tinygrad.lower.registry import PART_OF, TO_TINY
from torch_tinygrad.target import target

from .. import clang
from . import cuda, kernel_cache, opencl
from .marks import LAST_WRITES

# Uploads go through staging memory that stays taken until the device was waited for: larger ones go in pieces, and
# after so many the device is waited for.
PIECE = 16 << 20
MAX_PENDING = 64

# Before the first device is opened.
choice.tell_tinygrad()
clang.provide()
kernel_cache.apply()
if choice.chosen_device() == "CUDA":
    cuda.compile_to_machine_code()
if choice.chosen_device() == "CL":
    opencl.build_once()
    opencl.repeat_devices()


def device_name(index: int) -> str:
    """tinygrad's name for `tiny:index`."""
    return Device.DEFAULT if index == 0 else f"{Device.DEFAULT}:{index}"


def lacking() -> list[torch.dtype]:
    """The types of which there are no tensors on the device."""
    parts = TO_TINY | {dtype: TO_TINY[part] for dtype, part in PART_OF.items()}
    return [dtype for dtype, part in parts.items() if part in target().lacks]


def most_pending() -> int:
    """Bytes of results that may be pending: a share of the device's memory, where that is known."""
    if target().library == "cuda":
        return torch.cuda.mem_get_info()[1] // 2
    return 2 << 30


def most_bytes() -> int:
    """Of one buffer."""
    return target().most_bytes


def most_kept() -> int:
    """Bytes of results that a program may keep for itself."""
    return torch.cuda.mem_get_info()[1] // 32 if target().library == "cuda" else 0


def activate(device: str) -> None:
    """Makes the device current in this thread, where its driver asks for that: flushes come from any thread."""
    opened = Device[device]
    if target(device).driver == "CUDA":
        from tinygrad.runtime.ops_cuda import check
        from tinygrad.runtime.ops_cuda import cuda as driver

        check(driver.cuCtxSetCurrent(opened.context))


def synchronize(index: int) -> None:
    Device[device_name(index)].synchronize()


def memory_info(index: int) -> tuple[int, int]:
    """Bytes that are free and all there are, where the driver tells. OpenCL and WebGPU tell the second alone: free is
    then what no tensor of this process has."""
    device = device_name(index)
    if target(device).driver == "CUDA":
        return _cuda_memory_info(device)
    if not (total := target(device).memory):
        raise NotImplementedError(f"tiny: how much memory {device} has is not known: its driver does not tell")
    return max(total - torch.accelerator.memory_allocated(index), 0), total


def total_memory(index: int) -> int:
    """Bytes; 0 where the driver does not tell."""
    device = device_name(index)
    return _cuda_memory_info(device)[1] if target(device).driver == "CUDA" else target(device).memory


def _cuda_memory_info(device: str) -> tuple[int, int]:
    import ctypes

    from tinygrad.runtime.ops_cuda import check
    from tinygrad.runtime.ops_cuda import cuda as driver

    activate(device)
    check(driver.cuMemGetInfo_v2(ctypes.byref(free := ctypes.c_size_t()), ctypes.byref(total := ctypes.c_size_t())))
    return free.value, total.value


def wrap(device: str, owner: torch.Tensor) -> Buffer:
    """A buffer over ATen's memory, which lives as long as it does."""
    options = BufferSpec(external_ptr=owner.data_ptr())
    buffer = Buffer(device, owner.nbytes, dtypes.uint8, options=options).ensure_allocated()
    buffer.owner = owner
    return buffer


def library_device(device: str) -> torch.device:
    """PyTorch's own device with the same memory."""
    return torch.device(target(device).library, int(device.partition(":")[2] or 0))


def wrap_for(index: int, owner: torch.Tensor) -> Buffer:
    return wrap(device_name(index), owner)


def begin_direct(index: int) -> None:
    """Before ATen's kernels run by themselves: what they write is not where programs left it."""
    LAST_WRITES.clear()
    if target().library == "cpu":  # whose kernels do not wait for tinygrad's; on CUDA both are in one stream
        synchronize(index)


def allocate(device: str, nbytes: int, options: BufferSpec | None = None) -> Buffer:
    if target(device).library:
        return wrap(device, torch.empty(nbytes, dtype=torch.uint8, device=library_device(device)))
    wanted = f"tiny: out of memory. Tried to allocate {nbytes} bytes on {device}"
    if nbytes > (most := target(device).most_bytes):
        raise torch.OutOfMemoryError(f"{wanted}, whose buffers have at most {most}")
    try:
        return Buffer(device, nbytes, dtypes.uint8, options=options).ensure_allocated()
    except MemoryError as error:
        raise torch.OutOfMemoryError(wanted) from error


def new_buffer(index: int, nbytes: int) -> Buffer:
    return allocate(device_name(index), nbytes)


def write(buffer: Buffer, data: memoryview) -> None:
    """Copies bytes into a buffer, after everything that was started on it before."""
    LAST_WRITES.pop(buffer, None)
    if data.nbytes <= PIECE or not target(buffer.device).has_views:
        copy_in(buffer.device, buffer._buf, data)
        return
    for start in range(0, data.nbytes, PIECE):
        piece = data[start : start + PIECE]
        copy_in(buffer.device, buffer.allocator._offset(buffer._buf, piece.nbytes, start), piece)
        if start // PIECE % 4 == 3:
            Device[buffer.device].synchronize()


def copy_in(device: str, opaque: Any, data: memoryview) -> None:
    """Copies bytes to what the device's driver knows as `opaque`. Where they are now is free for other use at once."""
    opened = Device[device]
    if len(getattr(opened, "pending_copyin", ())) >= MAX_PENDING:
        opened.synchronize()
    opened.allocator._copyin(opaque, memoryview(bytearray(data)) if target(device).reads_late else data)


def read(buffer: Buffer, offset: int, destination: memoryview) -> None:
    """Copies bytes out of a buffer, after everything that was started on it before."""
    allocator = buffer.allocator
    if (mark := LAST_WRITES.get(buffer)) is not None:
        mark.read(allocator._offset(buffer._buf, destination.nbytes, offset), destination)
    elif offset == 0 and destination.nbytes == buffer.nbytes:
        allocator._copyout(destination, buffer._buf)
    elif target(buffer.device).has_views:
        allocator._copyout(destination, allocator._offset(buffer._buf, destination.nbytes, offset))
    else:
        whole = memoryview(bytearray(buffer.nbytes))
        allocator._copyout(whole, buffer._buf)
        destination[:] = whole[offset : offset + destination.nbytes]


def upload(index: int, data: memoryview) -> Buffer:
    buffer = new_buffer(index, data.nbytes)
    # tinygrad asks for writable memory, though it only reads.
    write(buffer, to_mv(numpy.frombuffer(data, numpy.uint8).ctypes.data, data.nbytes))
    return buffer


def download(buffer: Buffer, offset: int, destination: memoryview) -> None:
    read(buffer, offset, destination.cast("B"))


class Kept:
    """Memory of ATen's for a program's results, which it takes again when nobody has them any more, so that they lie
    where they lay: a few of each, as a loop may hold one step's results while it computes the next. An allocator that
    others use too may go on for long before it gives the same places."""

    most = 3  # of each result

    def __init__(self, device: str, sizes: list[int]):
        self.device, self.sizes = device, sizes
        self.storages: list[list[torch.UntypedStorage]] = [[] for _ in sizes]

    def take(self) -> list[Buffer]:
        return [self._take(i, nbytes) for i, nbytes in enumerate(self.sizes)]

    def _take(self, i: int, nbytes: int) -> Buffer:
        for storage in self.storages[i]:
            if torch._C._storage_Use_Count(storage._cdata) == 1:
                owner = torch.empty(0, dtype=torch.uint8, device=storage.device)
                return wrap(self.device, owner.set_(storage, 0, (nbytes,), (1,)))
        buffer = allocate(self.device, nbytes)
        self.storages[i] = [*self.storages[i][-self.most + 1 :], buffer.owner.untyped_storage()]
        return buffer


class Arenas:
    """Memory for temporaries: one block per device, as large as the largest program asked for. Programs of a device run
    one after the other, so they can share it."""

    def __init__(self) -> None:
        self.blocks: dict[str, Buffer] = {}

    def of(self, device: str, nbytes: int) -> Buffer:
        block = self.blocks.get(device)
        if block is None or block.nbytes < nbytes:
            if block is not None:
                Device[device].synchronize()
                del self.blocks[device], block
            block = self.blocks[device] = allocate(device, nbytes, BufferSpec(nolru=True))
        return block


ARENAS = Arenas()


def empty_cache() -> None:
    """Gives memory that nothing uses back to the devices."""
    for device in Device._opened_devices:
        Device[device].synchronize()
        if hasattr(allocator := Device[device].allocator, "free_cache"):
            allocator.free_cache()
    if target().library == "cuda":
        torch.cuda.empty_cache()
