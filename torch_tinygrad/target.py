"""What the rest asks about a device: one `Target` each. Adding a device is adding what is special to it.

Most of it tinygrad knows (its renderer); what it does not say stands in `SPECIAL`.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any

from tinygrad import Device
from tinygrad.dtype import DType, dtypes

from .choice import is_host, library

# Computed exactly by others where the hardware has none: pairs of 32-bit integers. (Of short floats tinygrad has an
# emulation too, but it does not round between two operators.)
EMULATED = (dtypes.int64, dtypes.uint64)


@dataclass(frozen=True)
class Target:
    device: str  # tinygrad's name
    shares_host_memory: bool = False  # its buffers are the host's
    has_views: bool = True  # a part of a buffer can be an operand
    has_groups: bool = False  # it runs threads in groups, and needs many of them to be fast
    regroups: bool = False  # its compilers may take (a + b) - b for a
    compiles_late: bool = False  # the driver compiles kernels that are loaded or launched; its cache keeps machine code
    reads_late: bool = False  # an upload reads the host's memory after it has returned
    driver: str = ""  # that is used directly, where tinygrad's way costs time
    library: str = ""  # PyTorch's device whose kernels run on the same memory
    most_buffers: int = 24  # that a kernel may have (Metal binds 31)
    most_threads: int = 256  # in a group
    most_bytes: int = 1 << 62  # of a buffer
    memory: int = 0  # bytes of it, where its driver tells
    lacks: frozenset[DType] = frozenset()

    @property
    def renderer(self) -> Any:
        return Device[self.device].renderer

    @property
    def widest_float(self) -> DType:
        """For intermediate results that must be exact."""
        return dtypes.float32 if dtypes.float64 in self.lacks else dtypes.float64

    def has_tensor_core(self, dtype: DType) -> bool:
        return any(core.dtype_in == dtype and core.dtype_out == dtypes.float32 for core in self.renderer.tensor_cores)


def _of_host() -> int:
    """Bytes of memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _opencl(device: Any) -> dict[str, Any]:
    import ctypes

    from tinygrad.runtime.autogen import opencl as cl
    from tinygrad.runtime.ops_cl import check

    def ask(what: int) -> int:
        check(cl.clGetDeviceInfo(device.cl_dev, what, 8, ctypes.byref(found := ctypes.c_uint64()), None))
        return found.value

    return {
        "has_views": False,
        "compiles_late": True,
        "reads_late": True,
        "most_bytes": ask(cl.CL_DEVICE_MAX_MEM_ALLOC_SIZE),
        "memory": ask(cl.CL_DEVICE_GLOBAL_MEM_SIZE),
        # A parameter of a kernel is a pointer.
        "most_buffers": min(24, ask(cl.CL_DEVICE_MAX_PARAMETER_SIZE) // 8),
    }


def _webgpu(device: Any) -> dict[str, Any]:
    from tinygrad.runtime.autogen import webgpu
    from tinygrad.schedule.rangeify import DEVICE_MAX_BUFS

    webgpu.wgpuDeviceGetLimits(device.device_res, found := webgpu.WGPUSupportedLimits())
    return {
        "has_views": False,
        "regroups": True,
        "compiles_late": True,
        "driver": "WEBGPU",
        "most_bytes": min(found.limits.maxStorageBufferBindingSize, found.limits.maxBufferSize),
        "most_buffers": min(DEVICE_MAX_BUFS["WEBGPU"], found.limits.maxStorageBuffersPerShaderStage),
        "memory": _webgpu_memory(device),
    }


def _webgpu_memory(device: Any) -> int:
    """Of the heaps that are the device's own, where the adapter lists them: Dawn's extension of WebGPU."""
    import ctypes

    from tinygrad.runtime.autogen import webgpu

    kind = webgpu.WGPUChainedStructOut(sType=webgpu.WGPUSType_AdapterPropertiesMemoryHeaps)
    heaps = webgpu.WGPUAdapterPropertiesMemoryHeaps(chain=kind)
    chained = ctypes.cast(ctypes.pointer(heaps), ctypes.POINTER(webgpu.WGPUChainedStructOut))
    webgpu.wgpuDeviceGetAdapterInfo(device.device_res, webgpu.WGPUAdapterInfo(nextInChain=chained))
    listed = heaps.heapInfo[: heaps.heapCount]
    return sum(heap.size for heap in listed if heap.properties & webgpu.WGPUHeapProperty_DeviceLocal)


SPECIAL = {
    "CPU": lambda device: {"shares_host_memory": is_host(), "library": library(), "memory": _of_host()},
    "CL": _opencl,
    "CUDA": lambda device: {"driver": "CUDA", "library": library()},
    "PYTHON": lambda device: {"memory": _of_host()},
    "WEBGPU": _webgpu,
}


@functools.cache
def _target(device: str) -> Target:
    opened = Device[device]
    kind = device.split(":")[0]
    supported = opened.renderer.supported_dtypes()
    lacks = {dtype for dtype in dtypes.all if dtype not in supported and dtype not in EMULATED}
    special = SPECIAL[kind](opened) if kind in SPECIAL else {}
    threads = (opened.renderer.local_max or (0,))[0]
    if threads <= 1024:  # tinygrad writes more where it does not know
        special.setdefault("most_threads", threads)
    return Target(device, has_groups=opened.renderer.has_local, lacks=frozenset(lacks), **special)


def target(device: str | tuple[str, ...] | None = None) -> Target:
    """Of tinygrad's device, the default one where none is named."""
    return _target(device[0] if isinstance(device, tuple) else device or Device.DEFAULT)
