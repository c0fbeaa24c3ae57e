"""Reading a result before the rest of its program has run, on devices that can tell how far they are.

A training step is one program, and its loss is ready long before the last parameter. Who reads the loss waits for the
part of the program that computes it; the device goes on with the gradients while the host records the next step.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from tinygrad import Device
from tinygrad.device import Buffer
from tinygrad.helpers import mv_address, suppress_finalizing

from torch_tinygrad.target import target


class Mark(Protocol):
    """A point in the order of a device's work."""

    def set(self) -> None:
        """Here, after everything that was started before."""

    def read(self, source: Any, destination: memoryview) -> None:
        """Copies bytes out when the device has come here, whatever it has to do after that."""


# For buffers that a program wrote, where it did so last.
LAST_WRITES: WeakKeyDictionary[Buffer, Mark] = WeakKeyDictionary()


def new_mark(device: str) -> Mark | None:
    return CudaMark(device) if target(device).driver == "CUDA" else None


@functools.cache
def _reading_stream(device: str) -> Any:
    """A stream that does not wait for the one kernels run in."""
    from tinygrad.runtime.ops_cuda import check, cuda

    check(cuda.cuStreamCreate(ctypes.byref(stream := cuda.CUstream()), cuda.CU_STREAM_NON_BLOCKING))
    return stream


class CudaMark:
    def __init__(self, device: str):
        from tinygrad.runtime.ops_cuda import check, cuda

        self.cuda, self.check = cuda, check
        self.device, self.context = device, Device[device].context
        check(cuda.cuCtxSetCurrent(self.context))
        check(cuda.cuEventCreate(ctypes.byref(event := cuda.CUevent()), cuda.CU_EVENT_DISABLE_TIMING))
        self.event = event

    @suppress_finalizing
    def __del__(self) -> None:
        self.cuda.cuEventDestroy_v2(self.event)

    def set(self) -> None:
        self.check(self.cuda.cuEventRecord(self.event, None))

    def read(self, source: Any, destination: memoryview) -> None:
        cuda, check = self.cuda, self.check
        check(cuda.cuCtxSetCurrent(self.context))
        stream = _reading_stream(self.device)
        check(cuda.cuStreamWaitEvent(stream, self.event, 0))
        check(cuda.cuMemcpyDtoHAsync_v2(mv_address(destination), source, destination.nbytes, stream))
        check(cuda.cuStreamSynchronize(stream))
