"""Decompositions: an operator without a lowering, as the operators that PyTorch's own tables write it in.

The decomposition runs on Meta tensors that lie over storages exactly as the node's regions do, under a mode that notes
every operator it calls. Views inside it are therefore just more regions, and in-place writes just more writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from .forms import overload_of, reduce_forms
from .nodes import Lifted, Node, Number, Region, Storage, Trace
from .rewrites import REWRITES


class NotDecomposable(Exception):
    """PyTorch has no decomposition, or it needs values to choose its way."""


def decomposition_of(overload: torch._ops.OpOverload) -> Callable | None:
    return REWRITES.get(overload) or decomposition_table.get(overload)


def has_decomposition(op: str) -> bool:
    try:
        return decomposition_of(overload_of(op)) is not None
    except (AttributeError, RuntimeError):
        return False


class _Recorder(TorchDispatchMode):
    """Notes every operator that runs on Meta tensors, as nodes over numbered storages."""

    def __init__(self, trace: Trace):
        super().__init__()
        self.trace = trace
        self.number: dict[int, tuple[int, int]] = {}  # of each Meta storage, the trace's, and how it moves
        self.kept: list[torch.UntypedStorage] = []
        self.raw: list[tuple] = []

    def place(self, region: Region) -> torch.Tensor:
        """A Meta tensor that is this region of this storage."""
        number = region.storage, region.moves
        storage = next((s for s in self.kept if self.number[s._cdata] == number), None)
        if storage is None:
            storage = torch.empty(
                self.trace.storages[region.storage].nbytes, dtype=torch.uint8, device="meta"
            ).untyped_storage()
            self.number[storage._cdata] = number
            self.kept.append(storage)
        return torch.empty(0, dtype=region.dtype, device="meta").set_(
            storage, region.offset, region.size, region.stride
        )

    def region(self, tensor: torch.Tensor) -> Region:
        storage = tensor.untyped_storage()
        number = self.number.get(storage._cdata)
        if number is None:
            number = self.number[storage._cdata] = len(self.trace.storages), -1
            self.kept.append(storage)
            self.trace.storages.append(Storage(storage.nbytes(), False, False))
        (own, moves), shape, stride = number, tuple(tensor.shape), tuple(tensor.stride())
        return Region(own, tensor.dtype, shape, stride, int(tensor.storage_offset()), moves)

    def argument(self, value):
        if isinstance(value, torch.Tensor):
            if value.device.type == "cpu":
                if value.dim() != 0:
                    raise NotDecomposable("a decomposition that makes CPU tensors")
                return Number(value.item())
            return self.region(value)
        if isinstance(value, (list, tuple)):
            return [self.argument(v) for v in value]
        if isinstance(value, (bool, int, float)):
            return Number(value)
        return value

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        schema = func._schema
        if func in (torch.ops.aten._local_scalar_dense.default,):
            raise NotDecomposable("a decomposition that reads values")
        # Autograd, which would take composite operators apart, has already been passed when a flush compiles.
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        results = [
            r for r in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(r, torch.Tensor)
        ]
        if not results and not schema.is_mutable:
            return result
        bound = {a.name: v for a, v in zip(schema.arguments, args, strict=False)} | kwargs
        values = [bound.get(a.name, a.default_value if a.has_default_value() else None) for a in schema.arguments]
        written = [
            v
            for a, v in zip(schema.arguments, values, strict=True)
            if a.alias_info is not None and a.alias_info.is_write
        ]
        writes = [
            self.region(t) for w in written if w is not None for t in (w if isinstance(w, (list, tuple)) else [w])
        ]
        known = {t.untyped_storage()._cdata for v in values for t in _tensors(v)}
        fresh = [r for r in results if r.untyped_storage()._cdata not in known]
        if (
            func.is_view
            or (not fresh and not writes)
            or func._schema.name
            in (
                "aten::empty",
                "aten::empty_strided",
                "aten::empty_like",
                "aten::new_empty",
                "aten::new_empty_strided",
                "aten::detach",
                "aten::alias",
            )
        ):
            for r in results:
                self.region(r)
            return result
        drops = {a.name: v for a, v in zip(schema.arguments, values, strict=True)}.get("dropout_p")
        if torch.Tag.nondeterministic_seeded in func.tags and drops != 0:
            raise NotDecomposable("a decomposition that draws random numbers")
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        self.raw.append((name, [self.argument(v) for v in values], [self.region(r) for r in fresh], writes))
        return result


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors(v)


def _value(recorder: _Recorder, argument):
    if isinstance(argument, Region):
        return recorder.place(argument)
    if isinstance(argument, Number):
        return argument.value
    if isinstance(argument, Lifted):
        raise NotDecomposable("a decomposition of a number that is an input")
    if isinstance(argument, (list, tuple)):
        return [_value(recorder, a) for a in argument]
    return argument


def take_apart(trace: Trace, stays: Callable[[Node], bool]) -> Trace:
    """The trace in which every node that does not stay, and has a decomposition, is the nodes it is made of."""
    nodes: list[Node] = []

    def add(node: Node) -> None:
        if not stays(node) and has_decomposition(node.op):
            try:
                parts = decompose(node, trace)
            except NotDecomposable:
                pass
            else:
                for part in parts:
                    add(replace(part, origin=node.origin))
                return
        nodes.append(node)

    for node in trace.nodes:
        add(node)
    return Trace(nodes, trace.storages, trace.numbers)


def decompose(node: Node, trace: Trace) -> list[Node]:
    """The nodes that compute this one. New storages for values in between are appended to the trace."""
    overload = overload_of(node.op)
    function = decomposition_of(overload)
    if function is None:
        raise NotDecomposable(f"{node.op} has no decomposition")
    storages = len(trace.storages)
    recorder = _Recorder(trace)
    positional, keyword = [], {}
    for argument, value in zip(overload._schema.arguments, node.args, strict=False):
        given = _value(recorder, value)
        if argument.name == "device":
            given = torch.device("meta")
        if not argument.kwarg_only:
            positional.append(given)
        elif given is not None:
            keyword[argument.name] = given
    try:
        with recorder:
            result = function(*positional, **keyword)
    except NotDecomposable:
        del trace.storages[storages:]
        raise
    except Exception as error:
        del trace.storages[storages:]
        raise NotDecomposable(f"the decomposition of {node.op} failed: {error}") from error
    if result is NotImplemented:
        raise NotDecomposable(f"the decomposition of {node.op} does not take these arguments")
    nodes = reduce_forms(recorder.raw, trace.storages)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(results) == 1 and isinstance(results[0], (tuple, list)):
        results = list(results[0])
    for value, out in zip(results, node.outs, strict=True):
        if out is not None and value is not None:
            nodes.append(Node("aten::copy", (out, recorder.region(value), False), (out,)))
    return nodes
