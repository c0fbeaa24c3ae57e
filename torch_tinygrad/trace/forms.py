"""Operator forms: every in-place, `out=` and foreach overload is the functional operator plus the regions it writes.

The recorder notes overloads as PyTorch dispatched them; here they are reduced to functional ones, once per overload.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .adding import Nodes
from .nodes import Node, Number, Region, Storage

# Functional operators whose name does not follow from the in-place one's.
_RENAMED = {
    "aten::__ilshift__.Scalar": "aten::__lshift__.Scalar",
    "aten::__ilshift__.Tensor": "aten::__lshift__.Tensor",
    "aten::__irshift__.Scalar": "aten::__rshift__.Scalar",
    "aten::__irshift__.Tensor": "aten::__rshift__.Tensor",
    "aten::bernoulli_.float": "aten::bernoulli.p",
    "aten::float_power_.Scalar": "aten::float_power.Tensor_Scalar",
    "aten::floor_divide_.Tensor": "aten::floor_divide",
    "aten::normal_": "aten::normal_functional",
    "aten::pow_.Scalar": "aten::pow.Tensor_Scalar",
    "aten::pow_.Tensor": "aten::pow.Tensor_Tensor",
}

# What one element of a foreach overload computes: by operator, by overload.
_FOREACH_BASE = {
    "minimum": {"List": "aten::minimum", "Scalar": "aten::clamp_max", "ScalarList": "aten::clamp_max"},
    "maximum": {"List": "aten::maximum", "Scalar": "aten::clamp_min", "ScalarList": "aten::clamp_min"},
    "clamp_max": {"List": "aten::minimum", "Scalar": "aten::clamp_max", "ScalarList": "aten::clamp_max"},
    "clamp_min": {"List": "aten::maximum", "Scalar": "aten::clamp_min", "ScalarList": "aten::clamp_min"},
    "pow": {
        "List": "aten::pow.Tensor_Tensor",
        "Scalar": "aten::pow.Tensor_Scalar",
        "ScalarList": "aten::pow.Tensor_Scalar",
        "ScalarAndTensor": "aten::pow.Scalar",
    },
    "lerp": {"List": "aten::lerp.Tensor", "Scalar": "aten::lerp.Scalar", "ScalarList": "aten::lerp.Scalar"},
    "addcmul": {"Scalar": "aten::addcmul", "ScalarList": "aten::addcmul"},
    "addcdiv": {"Scalar": "aten::addcdiv", "ScalarList": "aten::addcdiv"},
    "copy": {"": "aten::copy"},
    "max": {"": "aten::max"},
    "norm": {"Scalar": "aten::linalg_vector_norm"},
}
_FOREACH_OVERLOAD = {"List": "Tensor", "Scalar": "Scalar", "ScalarList": "Scalar", "Tensor": "Tensor", "": ""}


def overload_of(name: str) -> torch._ops.OpOverload:
    """The overload of a dispatcher's name such as `aten::add.Tensor`."""
    qualified, _, overload = name.partition(".")
    space, _, op = qualified.partition("::")
    return getattr(getattr(getattr(torch.ops, space), op), overload or "default")


@functools.cache
def schema_of(op: str) -> list[tuple[str, bool, bool]]:
    """(name, is a keyword, is a tensor) of each argument."""
    return [(a.name, a.kwarg_only, "Tensor" in str(a.type)) for a in overload_of(op)._schema.arguments]


def _find(name: str) -> torch._ops.OpOverload | None:
    try:
        return overload_of(name)
    except (AttributeError, RuntimeError):
        return None


@dataclass(frozen=True)
class Form:
    """How an overload reduces to a functional operator. `arguments`: for each of the functional operator's arguments,
    the position among the overload's own, or -1 for its default. `foreach`: lists are walked element by element."""

    op: str
    arguments: tuple[int, ...]
    defaults: tuple[Any, ...]
    foreach: bool = False


def _matching(overload, candidate, written: set[int]) -> tuple[int, ...] | None:
    """Positions of the candidate's arguments among the overload's, by name and type; None if the overload has one too
    many."""
    own = {(a.name, str(a.type)): i for i, a in enumerate(overload._schema.arguments) if i not in written}
    positions = tuple(own.pop((a.name, str(a.type)), -1) for a in candidate._schema.arguments)
    optional = all(p >= 0 or a.has_default_value() for p, a in zip(positions, candidate._schema.arguments, strict=True))
    return positions if not own and optional else None


def _defaults(overload) -> tuple[Any, ...]:
    return tuple(a.default_value if a.has_default_value() else None for a in overload._schema.arguments)


def _foreach_form(name: str) -> Form:
    op, _, overload = name.removeprefix("aten::_foreach_").partition(".")
    op = op.removesuffix("_")
    if op in _FOREACH_BASE:
        base = _FOREACH_BASE[op][overload]
    else:
        suffix = _FOREACH_OVERLOAD[overload]
        base = f"aten::{op}.{suffix}" if suffix else f"aten::{op}"
    target, source = _find(base), overload_of(name)
    if target is None:
        raise LookupError(f"{name} has no form of one element")
    # Elementwise arguments come in the same order; what foreach leaves out has a default.
    own = list(range(len(source._schema.arguments)))
    names = {a.name: i for i, a in enumerate(source._schema.arguments)}
    positions = []
    for argument in target._schema.arguments:
        if argument.kwarg_only or (op == "norm" and argument.name in ("dim", "keepdim")):
            aliases = {"value": ("value", "scalars"), "dtype": ("dtype",)}.get(argument.name, (argument.name,))
            positions.append(next((names[a] for a in aliases if a in names), -1))
        else:
            positions.append(own.pop(0) if own else -1)
    return Form(base, tuple(positions), _defaults(target), foreach=True)


@functools.cache
def form_of(name: str) -> Form:
    """The functional form of an overload; raises LookupError where PyTorch has none."""
    if name.startswith("aten::_foreach_"):
        return _foreach_form(name)
    overload = overload_of(name)
    schema = overload._schema
    written = {i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write}
    identity = tuple(range(len(schema.arguments)))
    if not written:
        return Form(name, identity, _defaults(overload))
    qualified, _, suffix = name.partition(".")
    outs = {i for i in written if schema.arguments[i].is_out}
    if not outs:
        base = qualified.removesuffix("_") if qualified.endswith("_") else qualified + "_functional"
        functional = _RENAMED.get(name, f"{base}.{suffix}" if suffix else base)
        target = _find(functional)
        if target is not None and (positions := _matching(overload, target, set())) is not None:
            return Form(functional, positions, _defaults(target))
        raise LookupError(f"{name} has no functional form")
    space, _, op = qualified.partition("::")
    packet = getattr(getattr(torch.ops, space), op)
    best = None
    for candidate in packet.overloads():
        target = getattr(packet, candidate)
        if any(a.alias_info is not None and a.alias_info.is_write for a in target._schema.arguments):
            continue
        positions = _matching(overload, target, outs)
        if positions is not None and (best is None or positions.count(-1) < best[1].count(-1)):
            best = (target, positions)
    if best is None:
        raise LookupError(f"{name} has no functional form")
    target, positions = best
    functional = target._schema.overload_name
    return Form(f"{qualified}.{functional}" if functional else qualified, positions, _defaults(target))


def has_form(name: str) -> bool:
    try:
        return form_of(name) is not None
    except LookupError:
        return False


# Batch norms write running statistics, some without saying so in their schema: the functional form of each, which takes
# the same arguments.
_BATCH_NORMS = {
    "aten::native_batch_norm": "aten::_native_batch_norm_legit_functional",
    "aten::native_batch_norm.out": "aten::_native_batch_norm_legit_functional",
    "aten::_native_batch_norm_legit": "aten::_native_batch_norm_legit_functional",
    "aten::_native_batch_norm_legit.out": "aten::_native_batch_norm_legit_functional",
    "aten::_batch_norm_with_update": "aten::_batch_norm_with_update_functional",
    "aten::_batch_norm_with_update.out": "aten::_batch_norm_with_update_functional",
}


def _batch_norm(name: str, args, outs, writes, origin: int) -> Node:
    functional = _BATCH_NORMS[name]
    args = args[: len(overload_of(functional)._schema.arguments)]
    running = [a for a in args[3:5] if a is not None]
    results = (*outs, *writes[len(running) :])
    if not running:
        return Node("aten::_native_batch_norm_legit.no_stats", (*args[:3], *args[5:]), results, origin)
    updates = iter(writes)
    states = [None if a is None else next(updates) for a in args[3:5]]
    trains = functional != "aten::_native_batch_norm_legit_functional" or args[5]
    return Node(functional, tuple(args), (*results, *(states if trains else (None, None))), origin)


def _elements(value, count: int) -> list:
    return value if isinstance(value, list) else [value] * count


# Arguments whose dtype says nothing of the result's, and operators whose result has that of what it replaces.
_PLACES = {"index", "indices", "mask", "condition"}
_KEEP_DTYPE = {"aten::copy", "aten::fill.Scalar", "aten::fill.Tensor"}
# Reductions compute in the dtype of `out`, whether they can be given one (sums can) or not.
_REDUCE_INTO = {"aten::var.correction", "aten::std.correction"}


def _own_dtypes(op: str, args: Sequence, results: Sequence[Region | None]) -> tuple[torch.dtype | None, ...]:
    """Of a functional operator's results. What they are written to may have others: `byte.floor_divide_(long)` divides
    64-bit integers, `torch.add(byte, byte, out=float)` adds bytes."""
    wanted = tuple(result.dtype if result is not None else None for result in results)
    schema = overload_of(op)._schema.arguments
    given = [(a, value) for a, value in zip(schema, args, strict=False) if a.name not in _PLACES]
    found = {region.dtype for _, value in given for region in _regions(value)}
    reduces = op in _REDUCE_INTO or any(a.name == "dtype" for a in schema)
    if op in _KEEP_DTYPE or reduces or found <= set(wanted):
        return wanted
    values = [(a, _on_meta(value)) for a, value in zip(schema, args, strict=False)]
    keyword = {a.name: value for a, value in values if a.kwarg_only and a.name != "device"}
    # Of any overload: a number may stand where this one takes a tensor.
    made = overload_of(op).overloadpacket(*(value for a, value in values if not a.kwarg_only), **keyword)
    return tuple(t.dtype for t in (made if isinstance(made, (tuple, list)) else [made]))


def _regions(value: Any) -> list[Region]:
    if isinstance(value, (list, tuple)):
        return [region for inner in value for region in _regions(inner)]
    return [value] if isinstance(value, Region) else []


def _on_meta(value: Any) -> Any:
    """An argument of an operator that is asked for dtypes alone."""
    if isinstance(value, (list, tuple)):
        return [_on_meta(inner) for inner in value]
    if isinstance(value, Region):
        return torch.empty(value.size, dtype=value.dtype, device="meta")
    return value.value if isinstance(value, Number) else value


def _converted(node: Node, storages: list[Storage]) -> list[Node]:
    """A node that writes, and where its results have other dtypes than their destinations, the copies that convert."""
    dtypes = _own_dtypes(node.op, node.args, node.outs)
    into = Nodes([], storages, node.origin)
    outs = [
        out if out is None or out.dtype == d else into.new(out.at(dtype=d), *out.size)
        for out, d in zip(node.outs, dtypes, strict=True)
    ]
    into.add(node.op, node.args, *outs)
    for out, made in zip(node.outs, outs, strict=True):
        if out is not None and made is not None and made is not out:
            into.copy(made, out)
    return into.nodes


def reduce_forms(raw: Sequence, storages: list[Storage]) -> list[Node]:
    """Recorded nodes `(overload, args, outs, writes)` as functional nodes, which may write to further storages."""
    nodes: list[Node] = []
    for origin, (name, args, outs, writes) in enumerate(raw):
        if name in _BATCH_NORMS:
            nodes.append(_batch_norm(name, args, outs, writes, origin))
            continue
        form = form_of(name)
        extra = tuple(args[len(overload_of(name)._schema.arguments) :])  # seed and offset of random operators
        chosen = [args[p] if p >= 0 else default for p, default in zip(form.arguments, form.defaults, strict=True)]
        if not form.foreach:
            node = Node(form.op, (*chosen, *extra), (*outs, *writes), origin)
            nodes.extend(_converted(node, storages) if writes and not extra else [node])
            continue
        results = outs or writes
        lists = [_elements(a, len(results)) for a in chosen]
        for i, result in enumerate(results):
            node = Node(form.op, tuple(a[i] for a in lists), (result,), origin)
            nodes.extend(_converted(node, storages) if writes else [node])
    return nodes


# Tagged as random for the sake of their dropout, which they refuse.
WITHOUT_DROPOUT = {"aten::_scaled_dot_product_flash_attention_for_cpu"}


def is_random(name: str) -> bool:
    overload = _find(name)
    tagged = overload is not None and torch.Tag.nondeterministic_seeded in overload.tags
    return tagged and name not in WITHOUT_DROPOUT
