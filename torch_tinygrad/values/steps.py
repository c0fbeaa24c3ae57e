"""Operators as steps of ATen's: their operands are laid out in buffers, and so are their results."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from tinygrad import Tensor
from tinygrad.uop.ops import Ops, UOp

from torch_tinygrad.trace.forms import schema_of
from torch_tinygrad.trace.geometry import strides_of
from torch_tinygrad.trace.nodes import Node, Number, Region, Trace, reads

from ..kernels.threads import is_stored
from ..lower.registry import TO_TINY, Meta
from .channels_last import activations_of, is_same_layout, is_small_part, order_of, strides_in, weight_of
from .in_place import held
from .regions import covers, in_memory

if TYPE_CHECKING:
    from .graph import Graph


@dataclass(frozen=True)
class Operand(Meta):
    """A tensor that a step reads or writes: a strided part of a buffer, counted in elements of its dtype."""

    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class AtenStep:
    """An operator that ATen's CPU kernels compute: `arguments` with tensors as None, their places and layouts."""

    op: str
    arguments: tuple[Any, ...]
    paths: tuple[tuple[int, ...], ...]
    inputs: tuple[Operand, ...]
    results: tuple[Operand | None, ...]
    is_fallback: bool

    def count_results(self) -> int:
        """How many of the step's buffers are results: empty ones have none."""
        return sum(m is not None and prod(m.shape) > 0 for m in self.results)


@dataclass
class Taken:
    """The tensors among a step's arguments: where they are among these, their values, and how those lie."""

    paths: list[tuple[int, ...]] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    arranged: list[tuple[int, ...]] = field(default_factory=list)  # paths of those that have channels last

    def add(self, path: tuple[int, ...], value: Tensor, operand: Operand) -> None:
        self.paths.append(path)
        self.values.append(value)
        self.operands.append(operand)


class Steps:
    """Adds steps to a graph. Where nobody will see it, convolutions have channels last."""

    def __init__(self, trace: Trace, graph: Graph):
        self.trace, self.graph = trace, graph
        self.with_channels_last: set[int] = set()  # storages whose values lie so, or are computed from such
        self.written = {out.storage for node in trace.nodes for out in node.outs if out is not None}

    def add(self, node: Node, is_fallback: bool, seeds: Tensor | None = None) -> None:
        """The operator as a step. Complex operands are handled as their parts, and only the step itself knows what they
        are. A random one is given the seed and the offset of our stream in its generator's place."""
        activations = () if is_fallback else self.activations_of(node)
        taken = Taken()
        arguments = tuple(
            self.take(argument, (i,), node, activations, taken)
            for i, argument in enumerate(node.args[: len(schema_of(node.op))])
        )
        if seeds is not None:
            place = [name for name, _, _ in schema_of(node.op)].index("generator")
            taken.add((place,), seeds, Operand((2,), torch.int64, (1,), 0))
        results = [None if out is None else self.result_of(out) for out in node.outs]
        orders: list[tuple[int, ...]] = [()] * len(results)
        if activations[:1] in taken.arranged:
            for i, (out, result) in enumerate(zip(node.outs, results, strict=True)):
                if out is not None and result is not None and len(out.size) > 1 and self.is_whole(out):
                    orders[i] = order_of(len(out.size))
                    results[i] = replace(result, stride=strides_in(out.size, orders[i]))
        self.graph.steps.append(
            AtenStep(node.op, arguments, tuple(taken.paths), tuple(taken.operands), tuple(results), is_fallback)
        )
        self.write_results(node, taken.values, results, orders)

    def take(self, argument: Any, path: tuple[int, ...], node: Node, activations: tuple[int, ...], taken: Taken) -> Any:
        """What the step is given for an argument: None for a tensor, which is noted."""
        if isinstance(argument, Number):
            return argument.value
        if isinstance(argument, (list, tuple)):
            return [self.take(a, (*path, i), node, activations, taken) for i, a in enumerate(argument)]
        if not isinstance(argument, Region):
            return argument
        found = None
        if path[0] in activations:
            found = self.channels_last(argument, node)
        elif activations and path == (weight_of(node),):
            found = self.weight_with_channels_last(argument)
        if found is not None:
            taken.arranged.append(path)
        taken.add(path, *(found or self.as_it_lies(argument, node)))
        return None

    def as_it_lies(self, region: Region, node: Node) -> tuple[Tensor, Operand]:
        """A buffer that holds the region, or else its value, and how it lies there."""
        flat = self.graph.flats[region.storage]
        wanted = sum(r.numel for r in {r for r in reads(node) if r.storage == region.storage})
        if (stored := flat.stored(region, wanted)) is not None:
            buffer, first = stored
            return buffer, Operand(region.size, region.dtype, region.stride, region.offset - first)
        return flat.read(in_memory(region)), Operand(region.size, region.dtype, strides_of(region.size), 0)

    def write_results(
        self,
        node: Node,
        values: list[Tensor],
        results: list[Operand | None],
        orders: list[tuple[int, ...]],
    ) -> None:
        """Calls the step that was added last on these values and writes what it makes; empty results have no buffer."""
        outs = [None if out is None else in_memory(out) for out in node.outs]
        buffers = [
            UOp.new_buffer(self.graph.device, out.numel, TO_TINY[out.dtype]) if out is not None and out.numel else None
            for out in outs
        ]
        laid_out = [self.laid_out(value) for value in values if value.numel()]
        if not (outputs := [b for b in buffers if b is not None]):
            return
        function = UOp(Ops.CUSTOM_FUNCTION, src=(), arg=f"aten:{len(self.graph.steps) - 1}")
        call = function.call(*outputs, *laid_out)
        for out, buffer, result, order in zip(outs, buffers, results, orders, strict=True):
            if buffer is None or out is None or result is None:
                continue
            written = buffer.after(call)
            self.graph.origins[written] = node.op.removeprefix("aten::")
            if self.is_whole(out) and result.stride == out.stride:
                self.graph.flats[out.storage].replace(Tensor(written))
            elif order:
                self.graph.flats[out.storage].write_arranged(out, Tensor(written), order)
                self.with_channels_last.add(out.storage)
            else:
                self.graph.flats[out.storage].write(out, Tensor(written).reshape(out.size))

    def activations_of(self, node: Node) -> tuple[int, ...]:
        """The arguments that had better have channels last, where nobody will see it; the first is the input."""
        out = node.outs[0]
        is_hidden = out is None or (self.is_whole(out) and not self.trace.storages[out.storage].live)
        return activations_of(node) if is_hidden else ()

    def channels_last(self, region: Region, node: Node) -> tuple[Tensor, Operand] | None:
        """A buffer that holds the region with channels last, and how it lies there."""
        flat, order = self.graph.flats[region.storage], order_of(len(region.size))
        operand = Operand(region.size, region.dtype, strides_in(region.size, order), 0)
        if is_same_layout(region.size, region.stride, operand.stride):
            stored = flat.stored(region)
            return None if stored is None else (stored[0], replace(operand, offset=region.offset - stored[1]))
        buffer = flat.arranged(region, order, copies=is_small_part(region, node))
        if buffer is None:
            return None
        self.with_channels_last.add(region.storage)
        return buffer, operand

    def weight_with_channels_last(self, region: Region) -> tuple[Tensor, Operand] | None:
        """The same for weights. Those that no trace writes are left to the step, which keeps them in its own layout."""
        if region.storage not in self.written:
            return None
        order = order_of(len(region.size))
        buffer = self.graph.flats[region.storage].arranged(region, order, copies=True)
        if buffer is None:
            return None
        return buffer, Operand(region.size, region.dtype, strides_in(region.size, order), 0)

    def laid_out(self, value: Tensor) -> UOp:
        """The value in a buffer: the one it is, else a new one (tinygrad would fold constants into who reads them)."""
        return (value if is_stored(value) else held(value, self.graph.device)).uop

    def is_whole(self, region: Region) -> bool:
        """Whether the region is all of its storage, each element once."""
        whole = region.numel * region.dtype.itemsize == self.trace.storages[region.storage].nbytes
        return whole and covers(region.numel, region)

    def result_of(self, out: Region) -> Operand:
        """How a step leaves a result in a buffer: as it lies in its storage, where it is all of that."""
        kept = self.is_whole(out) and not out.dtype.is_complex
        return Operand(out.size, out.dtype, out.stride if kept else strides_of(out.size), 0)
