"""What a device launches at once: batches of kernels by tinygrad's graphs, with a replay for CUDA that touches only
what changed since the last run; and, where the library's kernels are CUDA's, whole parts of programs."""

from __future__ import annotations

import ctypes
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tinygrad import Device
from tinygrad.engine.jit import GraphException
from tinygrad.uop.ops import Ops, UOp

from torch_tinygrad.target import target

from . import cuda

if TYPE_CHECKING:
    import torch

    from .operands import Kernel, Operands, Step

# Places of its operands that a part of a program remembers. Allocators give the same few again, or always others: from
# so many on it is taken for the latter, and the program's results are kept where they can lie again.
MOST_ADDRESSES = 8
FEW_ADDRESSES = 3


class Batch:
    """Neighbouring kernels. The first run launches them one by one, as many programs run only once; the second makes
    the graph."""

    def __init__(self, device: str, kernels: list[Kernel], calls: list[UOp]):
        self.device, self.kernels = device, kernels
        self.operands = [i for kernel in kernels for i in kernel.operands]
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


class Captured:
    """Neighbouring steps, tinygrad's and the library's, as one CUDA graph. Its addresses are those it was captured
    with, so there is one for all addresses that the operands had twice."""

    def __init__(self, steps: Sequence[Step], batches: Sequence[Step], table: list[tuple[int, int, int]]):
        self.steps, self.batches = steps, batches  # one by one, and as they run where there is no graph
        self.operands = [i for step in steps for i in step.operands]
        self.writes = [i for step in steps for i in step.writes]
        self.bases = sorted({table[i][0] for i in self.operands})
        self.graphs: OrderedDict[tuple[int, ...], torch.cuda.CUDAGraph | None] = OrderedDict()
        self.works = True
        self.wanders = False  # whether the operands had more than a few addresses

    def run(self, operands: Operands) -> None:
        bases = operands.bases
        addresses = tuple([bases[number]._buf.value for number in self.bases])  # type: ignore[union-attr]
        if addresses not in self.graphs:
            self.graphs[addresses] = None
            self.wanders = self.wanders or len(self.graphs) > FEW_ADDRESSES
            if len(self.graphs) > MOST_ADDRESSES:
                self.graphs.popitem(last=False)
        elif (graph := self.graphs[addresses] or self._capture(operands)) is not None:
            self.graphs[addresses] = graph
            self.graphs.move_to_end(addresses)
            return graph.replay()
        for step in self.batches:
            step.run(operands)
        return None

    def _capture(self, operands: Operands) -> torch.cuda.CUDAGraph | None:
        if not self.works:
            return None

        def work() -> None:
            for step in self.steps:
                step.run(operands)

        try:
            return cuda.captured(work)
        except RuntimeError as error:
            self.works = False
            reason = str(error).partition("\n")[0]
            warnings.warn(f"tiny: steps of a program are launched one by one, not as a graph: {reason}", stacklevel=2)
            return None


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
