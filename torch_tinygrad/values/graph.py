"""From a trace to one tinygrad graph: walks the nodes in order, reading and writing storages as values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tinygrad import Tensor, dtypes
from tinygrad.uop.ops import Ops, UOp

from torch_tinygrad.target import target
from torch_tinygrad.trace.decisions import decide
from torch_tinygrad.trace.forms import is_random, schema_of
from torch_tinygrad.trace.nodes import Lifted, Node, Number, Region, Trace, reads
from torch_tinygrad.trace.sequence import SEQUENCE, Rounds

from ..kernels.threads import SMALL
from ..kernels.updates import Update, settled
from ..lower.complex import Complex, as_complex, lowering_of
from ..lower.random import Random
from ..lower.registry import LOWERINGS, PART_OF, TO_TINY, Meta, SideBySide
from .blocks import Places
from .channels_last import order_of
from .costs import Costs
from .finish import Finished, finish
from .in_place import held
from .regions import Shift
from .sequence import Numbers, Unfit, lower_sequence
from .steps import AtenStep, Steps
from .storages import Flat

# Operators that change a few elements of their first argument.
PUTS = {"aten::index_put", "aten::_index_put_impl"}
UPDATES = PUTS | {
    "aten::index_copy", "aten::index_add", "aten::index_fill.int_Scalar",
    "aten::index_fill.int_Tensor", "aten::scatter.src", "aten::scatter.value", "aten::scatter_add",
}  # fmt: skip


@dataclass
class Graph:
    """The trace as tinygrad values. `floats` and `ints` are the positions of lifted numbers in their input arrays."""

    flats: list[Flat]
    device: str
    space: Places
    floats: list[int] = field(default_factory=list)
    ints: list[int] = field(default_factory=list)
    float_input: UOp | None = None
    int_input: UOp | None = None
    steps: list[AtenStep] = field(default_factory=list)
    origins: dict[UOp, str] = field(default_factory=dict)  # of results, the operator

    def step(self, call: UOp) -> AtenStep:
        """The step that a call of a CUSTOM_FUNCTION stands for."""
        return self.steps[int(call.src[0].arg.partition(":")[2])]

    def finish(self) -> Finished:
        """What is to be stored in the end, and where. Once: it makes the last versions of buffers."""
        return finish(self.flats, self.device, self.space)


def _updates(node: Node) -> bool:
    """Whether the node changes a few elements of what it writes to, and can do so there. Sums of bools cannot: bytes,
    which bools are in memory, overflow."""
    if node.op not in UPDATES or node.args[0] != node.outs[0]:
        return False
    adds = node.op in ("aten::index_add", "aten::scatter_add") or (node.op in PUTS and node.args[3])
    return not (adds and node.outs[0].dtype is torch.bool)


class NodeError(RuntimeError):
    """A node could not be lowered. `tiny_node` is its number in the recorded trace."""

    def __init__(self, node: Node, cause: BaseException):
        super().__init__(f"tiny: {node.op} could not be compiled: {type(cause).__name__}: {cause}")
        self.tiny_node = node.origin


def can_lift(op: str, argument: int) -> bool:
    """Whether the lowering takes a tensor for a number in this place."""
    lowering = LOWERINGS.get(op)
    if lowering is None:
        return False
    name, _, is_tensor = schema_of(op)[argument]
    return is_tensor or name in lowering.lifts


def build(
    trace: Trace,
    varying: set[int],
    device: str,
    is_step: Callable[[Node], bool],
    shared: set[tuple[int, int]],
    in_place: bool = True,
) -> Graph:
    """Lowers every node. `varying` numbers become inputs; what `is_step` is an operator of ATen's; `shared` are the
    results (by numbers of the node and the result) that several kernels would compute; `in_place` allows writing into
    buffers before the end of the trace."""
    graph = Graph([], device, Places(device, target(device).has_views))
    _Builder(trace, graph, varying, is_step, shared, in_place).run()
    return graph


class _Builder:
    def __init__(self, trace: Trace, graph: Graph, varying: set[int], is_step, shared, in_place: bool):
        self.trace, self.graph, self.varying, self.is_step = trace, graph, varying, is_step
        self.all_shared = shared
        self.shifts: dict[int, Shift] = {}
        self.shared: set[Region | None] = set()  # results of the present node that several kernels read
        self.steps = Steps(trace, graph)
        self.costs = Costs()
        for storage in trace.storages:
            graph.flats.append(Flat(storage, graph.device, self.shift, graph.space, in_place))
        # The inputs' lengths are known only in the end, so numbers are read from placeholders of a generous size.
        size = max(1, 2 * len(trace.numbers) + 2)
        graph.float_input = UOp.new_buffer(graph.device, size, target(graph.device).widest_float)
        graph.int_input = UOp.new_buffer(graph.device, size, dtypes.int64)

    def run(self) -> None:
        for t, node in enumerate(self.trace.nodes):
            self.shared = {out for k, out in enumerate(node.outs) if (t, k) in self.all_shared}
            try:
                self.node(node)
            except Exception as error:
                raise NodeError(node, error) from error

    # ---- numbers ----

    def shift(self, position: int) -> Shift:
        if position not in self.shifts:
            self.shifts[position] = Shift(Tensor(self.graph.int_input), len(self.graph.ints))
            self.graph.ints.append(position)
        return self.shifts[position]

    def entries(self, positions: list[int], is_float: bool) -> tuple[Tensor, int]:
        """The program's input of numbers, and where in it these are."""
        inputs, source = (
            (self.graph.floats, self.graph.float_input) if is_float else (self.graph.ints, self.graph.int_input)
        )
        assert source is not None
        start = len(inputs)
        inputs.extend(positions)
        grown = source.shape[0]
        assert start + len(positions) <= grown, "more lifted numbers than inputs"
        return Tensor(source), start

    def lift(self, positions: list[int], is_float: bool) -> Tensor:
        """The flat tensor of these numbers, from the program's inputs."""
        source, start = self.entries(positions, is_float)
        return source.shrink(((start, start + len(positions)),))

    def number_dtype(self, node: Node, is_float: bool):
        """The dtype a lifted number takes part in: a number never widens what it is mixed with."""
        regions = [r for r in (*node.outs, *node.args) if isinstance(r, Region)]
        kinds = [PART_OF.get(r.dtype, r.dtype) for r in regions]
        floating = [dtype for dtype in kinds if dtype.is_floating_point]
        integral = [dtype for dtype in kinds if not dtype.is_floating_point and dtype is not torch.bool]
        if floating:
            wide = floating[0]
            return dtypes.float32 if wide in (torch.float16, torch.bfloat16) else TO_TINY[wide]
        if is_float:
            return TO_TINY[torch.get_default_dtype()]
        return TO_TINY[integral[0]] if integral else dtypes.int64

    def value(self, node: Node, argument, name: str, is_tensor: bool, lifts: frozenset[str]):
        if isinstance(argument, Region):
            return self.graph.flats[argument.storage].read(argument)
        if isinstance(argument, Number):
            if argument.position in self.varying and (is_tensor or name in lifts):
                is_float = isinstance(argument.value, float)
                return self.lift([argument.position], is_float).reshape(()).cast(self.number_dtype(node, is_float))
            return argument.value
        if isinstance(argument, Lifted):
            positions = [argument.position]
            for size, step in zip(argument.size, argument.step, strict=True):
                positions = [p + i * step for p in positions for i in range(size)]
            return (
                self.lift(positions, argument.is_float)
                .reshape(argument.size)
                .cast(self.number_dtype(node, argument.is_float))
            )
        if isinstance(argument, (list, tuple)):
            return [self.value(node, a, name, is_tensor, lifts) for a in argument]
        return argument

    # ---- nodes ----

    def node(self, node: Node) -> None:
        if node.op == SEQUENCE:
            return self.sequence(*node.args)
        if self.is_step(node):
            return self.steps.add(node, is_fallback=False)
        lowering = lowering_of(node)
        if lowering is not None:
            return self.lower(node, lowering)
        seeds = self.lift([n.position for n in node.args[-2:]], False) if is_random(node.op) else None
        return self.steps.add(node, is_fallback=True, seeds=seeds)

    def sequence(self, rounds: Rounds, nodes: list[Node]) -> None:
        """Loops as one kernel, or their nodes one by one."""

        def is_input(node: Node, argument: int, positions: list[int]) -> bool:
            return not self.varying.isdisjoint(positions) and can_lift(node.op, argument)

        numbers = Numbers(is_input, self.number_dtype, self.entries)
        try:
            lower_sequence(rounds, self.graph.flats, numbers, self.graph.device)
        except Unfit:
            for node in nodes:
                self.node(node)

    def write(self, node: Node, results: list) -> None:
        if len(results) != len(node.outs):
            raise ValueError(f"{len(results)} results, expected {len(node.outs)}")
        for result, out in zip(results, node.outs, strict=True):
            if out is None or result is None:
                continue
            dtype = Meta(out.size, out.dtype).tiny
            if isinstance(result, SideBySide):
                together = self.graph.space.has_views and decide("side by side", out.numel >= SMALL)
                result = self.graph.space.side_by_side(result.cast(dtype)) if together else result.cat()
            if out.dtype.is_complex:
                result = as_complex(result, dtype)
            if result.dtype != dtype:
                result = result.cast(dtype)
            if tuple(result.shape) != out.size:
                result = result.expand(out.size)
            if out.dtype is torch.bool:
                result = result.cast(dtypes.uint8)  # as it lies in memory
            self.note_origin(node.op, result)
            if isinstance(result, Tensor) and self.costs.is_stored_now(result, is_shared=out in self.shared):
                self.write_held(node, out, result)
            else:
                self.graph.flats[out.storage].write(out, result)
            if self.follows_channels_last(node, out):
                self.steps.with_channels_last.add(out.storage)

    def follows_channels_last(self, node: Node, out: Region) -> bool:
        """Whether a result is computed from what lies with channels last, and has the same channels."""
        return len(out.size) in (4, 5) and any(
            r.storage in self.steps.with_channels_last and len(r.size) == len(out.size) and r.size[:2] == out.size[:2]
            for r in reads(node)
        )

    def write_held(self, node: Node, out: Region, result: Tensor) -> None:
        """Writes a result that is stored now, for all who read it."""
        flat = self.graph.flats[out.storage]
        if flat.storage.live or not self.steps.is_whole(out) or not self.follows_channels_last(node, out):
            return flat.write(out, held(result, self.graph.device))
        order = order_of(len(out.size))
        flat.write_arranged(out, held(result.permute(order), self.graph.device), order)

    def note_origin(self, op: str, result: Tensor | Complex) -> None:
        for part in (result.re, result.im) if isinstance(result, Complex) else (result,):
            uop = part.uop
            while uop.op in (Ops.RESHAPE, Ops.EXPAND):
                uop = uop.src[0]
            if uop.op is not Ops.BUFFER:
                self.graph.origins.setdefault(uop, op.removeprefix("aten::"))

    def lower(self, node: Node, lowering) -> None:
        schema = schema_of(node.op)
        positional, keyword = [], {}
        for (name, is_keyword, is_tensor), argument in zip(schema, node.args, strict=False):
            value = self.value(node, argument, name, is_tensor, lowering.lifts)
            if is_keyword:
                keyword[name] = value
            else:
                positional.append(value)
        inferred = node.inferred or node.outs
        extra: dict[str, Any] = {"meta": tuple(Meta(o.size, o.dtype) if o is not None else None for o in inferred)}
        if is_random(node.op):
            seed, offset = (n.position for n in node.args[-2:])
            extra["rng"] = Random(self.lift([seed], False).reshape(()), self.lift([offset], False).reshape(()))
        result = lowering(positional, keyword, **extra)
        target = node.outs[0]
        if isinstance(result, Update) and _updates(node) and target is not None:
            return self.graph.flats[target.storage].update(target, result)
        self.write(node, list(result) if isinstance(result, (tuple, list)) else [settled(result)])
