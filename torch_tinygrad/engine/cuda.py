"""CUDA by its driver, where tinygrad's way costs time: one context with PyTorch, machine code, launches, graphs of
whole programs, times of steps."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .operands import Operands


def share_context() -> None:
    """Before tinygrad opens its device: it would make a context of its own, PyTorch has the primary one. Both launch on
    the default stream, so that their kernels keep the order in which they were launched."""
    torch.cuda.init()
    from tinygrad.runtime.autogen import cuda

    def retain(context, flags, device) -> int:
        status = cuda.cuDevicePrimaryCtxRetain(context, device)
        return status or cuda.cuCtxSetCurrent(context._obj)  # tinygrad passes it by reference

    cuda.cuCtxCreate_v2 = retain


def compile_to_machine_code() -> None:
    """tinygrad asks NVIDIA's compiler for assembly, which the driver translates whenever a process loads it: seconds
    for a program kept on disk. Machine code is loaded as it is."""
    from tinygrad.runtime.support.compiler_cuda import NVRTCCompiler

    plain = NVRTCCompiler.__init__

    def initialize(self, arch: str, ptx: bool = True, cache_key: str = "cuda") -> None:
        plain(self, arch, False, f"{cache_key}_cubin")

    NVRTCCompiler.__init__ = initialize


class Launch:
    """A kernel with its arguments, of which only those that changed are written again."""

    stream: Any = None  # the default one, but while a graph is captured

    def __init__(self, runtime: Any, operands: list[int], sizes: dict[str, Any]):
        from tinygrad.runtime.ops_cuda import check, cuda, encode_args

        self.operands, self.check = operands, check
        self.arguments, self.packed = encode_args([0] * len(operands), sizes["vals"], runtime.signature)
        self.words = (ctypes.c_uint64 * len(operands)).from_buffer(self.arguments)
        self.launch, self.function = cuda.cuLaunchKernel, runtime.prg
        self.shape = (*sizes["global_size"], *sizes["local_size"], runtime.smem)

    def __call__(self, operands: Operands) -> None:
        words, opaque = self.words, operands.opaque
        for k, i in enumerate(self.operands):
            words[k] = opaque[i].value
        self.check(self.launch(self.function, *self.shape, Launch.stream, None, self.packed))


@functools.cache
def _capturing() -> tuple[torch.cuda.Stream, Any, torch.cuda.CUDAGraph]:
    """A stream to capture in, and one pool for what library calls allocate meanwhile: graphs run one after the other,
    and leave nothing there. The pool stays while a graph that was captured into it does."""
    stream, pool, keeper = torch.cuda.Stream(), torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        number = torch.zeros(1, device="cuda")
        keeper.capture_begin(pool=pool, capture_error_mode="thread_local")
        number.add_(1)
        keeper.capture_end()
    return stream, pool, keeper


def captured(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """What `work` launches, tinygrad's kernels and the library's, as a graph that repeats it. Nothing runs yet."""
    from tinygrad.runtime.autogen import cuda as driver

    stream, pool, _ = _capturing()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        Launch.stream = ctypes.cast(ctypes.c_void_p(stream.cuda_stream), driver.CUstream)
        try:
            work()
        finally:
            Launch.stream = None
            graph.capture_end()
    return graph


class Times:
    """How long each step of a program takes on the device."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.step()

    def step(self) -> None:
        from tinygrad.runtime.ops_cuda import check
        from tinygrad.runtime.ops_cuda import cuda as driver

        check(driver.cuEventCreate(ctypes.byref(event := driver.CUevent()), 0))
        check(driver.cuEventRecord(event, None))
        self.events.append(event)

    def microseconds(self) -> list[float]:
        from tinygrad.runtime.ops_cuda import check
        from tinygrad.runtime.ops_cuda import cuda as driver

        check(driver.cuEventSynchronize(self.events[-1]))
        found = []
        for before, after in zip(self.events, self.events[1:], strict=False):
            check(driver.cuEventElapsedTime(ctypes.byref(milliseconds := ctypes.c_float()), before, after))
            found.append(milliseconds.value * 1e3)
        for event in self.events:
            check(driver.cuEventDestroy_v2(event))
        return found
