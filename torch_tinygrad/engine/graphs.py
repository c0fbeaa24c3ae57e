"""Batches of kernels that a device launches at once: tinygrad's graphs, and for CUDA a replay that touches only what
changed since the last run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tinygrad import Device
from tinygrad.engine.jit import GraphException
from tinygrad.uop.ops import Ops, UOp

from torch_tinygrad.target import target

if TYPE_CHECKING:
    from .remote import Kernel, Operands


class Batch:
    """Neighbouring kernels. The first run launches them one by one, as many programs run only once; the second makes
    the graph."""

    def __init__(self, device: str, kernels: list[Kernel], calls: list[UOp]):
        self.device, self.kernels = device, kernels
        self.writes = [i for kernel in kernels for i in kernel.writes]
        self.calls: list[UOp] | None = calls
        self.replay: Callable[[Operands], None] | None = None
        self.ran = False

    def run(self, operands: Operands) -> None:
        if self.replay is None and self.ran and self.calls is not None:
            self.replay = self._graph(operands)
        if self.replay is not None:
            return self.replay(operands)
        for kernel in self.kernels:
            kernel.run(operands)
        self.ran = True
        return None

    def _graph(self, operands: Operands) -> Callable[[Operands], None] | None:
        graph = UOp(Ops.CUSTOM_FUNCTION, src=(UOp(Ops.LINEAR, src=tuple(self.calls or ())),), arg="graph")
        self.calls = None
        slots = sorted({i for kernel in self.kernels for i in kernel.operands})
        try:
            runner = Device[self.device].graph(graph, input_uops=_named_buffers(operands, slots))
        except GraphException:
            return None
        if target(self.device).driver == "CUDA":
            return CudaReplay(runner, slots)
        return lambda operands: runner(_named_buffers(operands, slots), {})


def _named_buffers(operands: Operands, slots: list[int]) -> dict[int, Any]:
    """For each slot an object whose `buffer` is the operand: all that tinygrad's graphs ask of their inputs."""
    return {i: SimpleNamespace(buffer=operands.view(i)) for i in slots}


class CudaReplay:
    """Launches an instantiated CUDA graph, after updating the nodes whose operands moved."""

    def __init__(self, runner: Any, slots: list[int]):
        self.runner = runner
        self.address = dict.fromkeys(slots, 0)
        self.uses: dict[int, list[tuple[Any, int, int]]] = {i: [] for i in slots}
        for node, replaced in enumerate(runner.uop_replace):
            arguments = runner.nodes[node][2]
            words = (ctypes.c_uint64 * (ctypes.sizeof(arguments) // 8)).from_buffer(arguments)
            for position, slot in replaced:
                self.uses[slot].append((words, position, node))

    def __call__(self, operands: Operands) -> None:
        from tinygrad.runtime.ops_cuda import check, cuda

        opaque, address, stale = operands.opaque, self.address, set()
        for slot, uses in self.uses.items():
            at = opaque[slot].value
            if at != address[slot]:
                address[slot] = at
                for words, position, node in uses:
                    words[position] = at
                    stale.add(node)
        runner = self.runner
        for node in stale:
            handle, parameters, _, _ = runner.nodes[node]
            check(cuda.cuGraphExecKernelNodeSetParams(runner.instance, handle, ctypes.byref(parameters)))
        check(cuda.cuGraphLaunch(runner.instance, None))
