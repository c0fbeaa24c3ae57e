"""CUDA by its driver, where tinygrad's way costs time: one context with PyTorch, launches, times of steps."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .remote import Operands


def share_context() -> None:
    """Before tinygrad opens its device: it would make a context of its own, PyTorch has the primary one. Both launch on
    the default stream, so that their kernels keep the order in which they were launched."""
    torch.cuda.init()
    from tinygrad.runtime.autogen import cuda

    def retain(context, flags, device) -> int:
        status = cuda.cuDevicePrimaryCtxRetain(context, device)
        return status or cuda.cuCtxSetCurrent(context._obj)  # tinygrad passes it by reference

    cuda.cuCtxCreate_v2 = retain


class Launch:
    """A kernel with its arguments, of which only those that changed are written again."""

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
        self.check(self.launch(self.function, *self.shape, None, None, self.packed))


class Times:
    """How long each step of a program takes on the device."""

    def __init__(self) -> None:
        self.events = [torch.cuda.Event(enable_timing=True)]
        self.events[0].record()

    def step(self) -> None:
        self.events.append(torch.cuda.Event(enable_timing=True))
        self.events[-1].record()

    def microseconds(self) -> list[float]:
        torch.cuda.synchronize()
        pairs = zip(self.events, self.events[1:], strict=False)
        return [before.elapsed_time(after) * 1e3 for before, after in pairs]
