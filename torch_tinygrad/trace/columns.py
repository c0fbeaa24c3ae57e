"""A trace as columns of numbers, in which it is quick to see where nodes repeat: fingerprints of nodes are compared,
whole columns at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from torch_tinygrad.trace import pointwise
from torch_tinygrad.trace.batch import moves
from torch_tinygrad.trace.nodes import Lifted, Node, Number, Region, Trace, reads


@dataclass(slots=True)
class Columns:
    """The trace as arrays. Entries are the moving parts of all nodes one after the other: node t has those from
    starts[t] to starts[t + 1]. `value` is an offset or a position, `storage` is -1 for numbers."""

    nodes: list[Node]
    structure: np.ndarray
    starts: np.ndarray
    entry_node: np.ndarray
    entry_operand: np.ndarray
    value: np.ndarray
    storage: np.ndarray
    first: np.ndarray
    last: np.ndarray
    first_operand: np.ndarray
    temporary: np.ndarray
    nbytes: np.ndarray
    private_by_period: dict[int, np.ndarray] = field(default_factory=dict)

    def private(self, period: int) -> np.ndarray:
        """Storages that no two iterations can share, because they are not used for as long as one takes."""
        if period not in self.private_by_period:
            self.private_by_period[period] = self.temporary & (self.last - self.first < period)
        return self.private_by_period[period]


def columns_of(trace: Trace, is_pointwise) -> Columns:
    kinds: dict[tuple, int] = {}
    nodes, structure, starts = [], [], [0]
    values: list[int] = []
    storages: list[int] = []
    unused = len(trace.nodes)
    first = [unused] * len(trace.storages)
    last = [-1] * len(trace.storages)
    first_operand = [0] * len(trace.storages)
    for t, node in enumerate(trace.nodes):
        described = None
        if is_pointwise(node.op):
            simple = pointwise.canonical(node)
            described = _described(simple)
        if described is None:
            simple = node
            structure.append(t + 1)
            touched = [*reads(node), *(out for out in node.outs if out is not None)]
        else:
            kind, touched = described
            structure.append(-kinds.setdefault(kind, len(kinds) + 1))
            for part in touched:
                if type(part) is Region:
                    values.append(part.offset)
                    storages.append(part.storage)
                else:
                    values.append(part.position)
                    storages.append(-1)
        nodes.append(simple)
        starts.append(len(values))
        for number, part in enumerate(touched):
            if type(part) is Region:
                s = part.storage
                if first[s] == unused:
                    first[s], first_operand[s] = t, number
                last[s] = t
    begins = np.array(starts, np.int64)
    entry_node = np.repeat(np.arange(len(nodes)), np.diff(begins))
    return Columns(
        nodes,
        np.array(structure, np.int64),
        begins,
        entry_node,
        np.arange(len(values)) - begins[entry_node],
        np.array(values, np.int64),
        np.array(storages, np.int64),
        np.array(first, np.int64),
        np.array(last, np.int64),
        np.array(first_operand, np.int64),
        np.array([not (s.live or s.has_value) for s in trace.storages], bool),
        np.array([s.nbytes for s in trace.storages], np.int64),
    )


def _described(node: Node) -> tuple[tuple, list] | None:
    """Everything about a node that all iterations must have in common, and its `moving_parts`; None if it cannot be
    batched."""
    kind: list = [node.op]
    parts: list = []
    dtypes: set = set()
    ranks: set = set()
    copies = node.op == pointwise.COPY
    for arg in node.args[copies or node.op == pointwise.FILL :]:
        cls = type(arg)
        if cls is Region:
            kind.append((arg.dtype, arg.size, arg.stride, arg.moves))
            parts.append(arg)
            dtypes.add(arg.dtype)
            ranks.add(bool(arg.size))
        elif cls is Number:
            if moves(node.op, arg):
                kind.append((isinstance(arg.value, float), (), ()))
                parts.append(arg)
            else:
                kind.append((type(arg.value), repr(arg.value)))
        elif cls is Lifted:
            kind.append((arg.is_float, arg.size, arg.step))
            parts.append(arg)
        elif isinstance(arg, (list, tuple)):
            if any(isinstance(item, (Region, Number, Lifted, list, tuple)) for item in arg):
                return None
            kind.append((cls, tuple(arg)))
        else:
            kind.append((cls, arg))
    written = [out for out in node.outs if out is not None]
    kind += [None if out is None else (out.dtype, out.size, out.stride, out.moves) for out in node.outs]
    # A 0-dim operand is weak in type promotion and would not stay 0-dim.
    mixed = len(ranks) > 1 and len(dtypes) > 1 and not copies
    return None if mixed or not written else (tuple(kind), parts + written)


def intervals(columns: Columns, period: int) -> list[list[int]]:
    """Maximal [low, high) such that every node t in it matches t + period and t + 2 * period, in structure and
    storages, and advances by the same amounts between them."""
    starts, storage = columns.starts, columns.storage
    weights = _mixed(columns.entry_operand, 1) | 1
    private = columns.private(period)[storage] & (storage >= 0)
    created = columns.entry_node - columns.first[storage]
    relative = _mixed(created * 64 + columns.first_operand[storage], 2) + _mixed(columns.nbytes[storage], 3)
    identity = np.where(private, relative, _mixed(storage, 4))
    fingerprint = _mixed(columns.structure, 5) + _sums(weights * identity, starts)
    position = _sums(weights * columns.value, starts)
    same = fingerprint[:-period] == fingerprint[period:]
    step = position[period:] - position[:-period]
    steady = same[:-period] & same[period:] & (step[:-period] == step[period:])
    edges = edges_of(steady)
    return edges[edges[:, 1] - edges[:, 0] >= period].tolist()


def edges_of(flags: np.ndarray) -> np.ndarray:
    """Rows (low, high) of the maximal runs of True."""
    return np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])))).reshape(-1, 2)


def _mixed(values: np.ndarray, salt: int) -> np.ndarray:
    """A scattered 64-bit image of small numbers."""
    out = (values.astype(np.uint64) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
    out = (out ^ (out >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return (out ^ (out >> np.uint64(32))).view(np.int64)


def _sums(entries: np.ndarray, starts: np.ndarray) -> np.ndarray:
    total = np.concatenate(([0], np.cumsum(entries)))
    return total[starts[1:]] - total[starts[:-1]]
