"""The integers of a recorded trace, as a flat list: sizes, strides and offsets of its regions, numbers, integer
arguments, bytes of its storages. csrc/sizes/sizes.cpp lists them in the same order, with the loop that a trace ends in
behind them, and compares traces by them.

A recorded node is (operator, arguments, fresh results, changed arguments), as csrc/python/python.cpp makes it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import Any, cast

from .nodes import Number, Region, Trace


@dataclass(frozen=True, slots=True)
class Kinds:
    """Where in the list which integers stand."""

    sizes: frozenset[int]  # of regions
    numbers: range
    offsets: dict[int, tuple[int, ...]]  # of regions, each with the positions of its strides
    neighbours: dict[int, tuple[int, ...]]  # of each offset, the strides of all regions in its storage
    bounds: tuple[tuple[int, int, int], ...]  # of each region: of its offset, of its storage's bytes, and its item size


def _each(argument: Any, visit: Callable[[Any], Any]) -> Any:
    """The argument with `visit` applied to what it is made of."""
    if isinstance(argument, (list, tuple)):
        return [_each(a, visit) for a in argument]
    return visit(argument)


def _recorded(trace: Trace) -> list[Any]:
    return cast(list[Any], trace.nodes)


def _regions(trace: Trace) -> list[Region]:
    """Each once, in the order of their first use: an object stands for one region of the recorder's table."""
    found: dict[int, Region] = {}

    def visit(argument: Any) -> Any:
        if isinstance(argument, Region):
            found.setdefault(id(argument), argument)
        return argument

    for _, args, outs, _ in _recorded(trace):
        _each(args, visit)
        _each(outs, visit)
    return list(found.values())


def _bits(number: bool | int | float) -> int:
    return struct.unpack("<q", struct.pack("<d", number))[0] if isinstance(number, float) else int(number)


def _plain_integers(trace: Trace) -> Iterator[int]:
    """Integers among the arguments that are no numbers of the table."""
    found: list[int] = []

    def visit(argument: Any) -> Any:
        if isinstance(argument, int) and not isinstance(argument, bool):
            found.append(argument)
        return argument

    for _, args, _, _ in _recorded(trace):
        _each(args, visit)
    return iter(found)


def integers(trace: Trace, numbers: int) -> list[int]:
    """Of a trace whose table begins with so many recorded numbers."""
    values: list[int] = []
    for region in _regions(trace):
        values += (*region.size, *region.stride, region.offset)
    values += [_bits(n) for n in trace.numbers[:numbers]]
    values += _plain_integers(trace)
    return values + [s.nbytes for s in trace.storages]


def counts(trace: Trace) -> list[int]:
    """How many elements any of a region's dimensions have together: what means and variances divide by."""
    sizes = (region.size for region in _regions(trace))
    return [prod(some) for size in sizes for n in range(1, len(size) + 1) for some in combinations(size, n)]


def kinds(trace: Trace, numbers: int) -> Kinds:
    sizes: set[int] = set()
    offsets: dict[int, tuple[int, ...]] = {}
    position = 0
    regions = _regions(trace)
    for region in regions:
        n = len(region.size)
        sizes.update(range(position, position + n))
        offsets[position + 2 * n] = tuple(range(position + n, position + 2 * n))
        position += 2 * n + 1
    first = position + numbers + len(list(_plain_integers(trace)))
    bounds = tuple(
        (offset, first + region.storage, region.dtype.itemsize)
        for offset, region in zip(offsets, regions, strict=True)
        if region.numel
    )
    by_storage: dict[int, list[int]] = {}
    for region, strides in zip(regions, offsets.values(), strict=True):
        by_storage.setdefault(region.storage, []).extend(strides)
    neighbours = {offset: tuple(by_storage[region.storage]) for offset, region in zip(offsets, regions, strict=True)}
    return Kinds(frozenset(sizes), range(position, position + numbers), offsets, neighbours, bounds)


def with_integers(trace: Trace, values: list[int], numbers: int) -> Trace:
    """The trace with other integers in their places."""
    rest = iter(values)
    resized: dict[int, Region] = {}
    for region in _regions(trace):
        n = len(region.size)
        size, stride = (tuple(next(rest) for _ in range(n)) for _ in range(2))
        resized[id(region)] = replace(region, size=size, stride=stride, offset=next(rest))
    table = list(trace.numbers)
    for i in range(numbers):
        value = next(rest)
        table[i] = struct.unpack("<d", struct.pack("<q", value))[0] if isinstance(table[i], float) else value

    def visit(argument: Any) -> Any:
        if isinstance(argument, Region):
            return resized[id(argument)]
        if isinstance(argument, Number):
            return Number(table[argument.position], argument.position)
        if isinstance(argument, int) and not isinstance(argument, bool):
            return next(rest)
        return argument

    nodes = [(op, _each(args, visit), outs, writes) for op, args, outs, writes in _recorded(trace)]
    nodes = [(op, args, _each(outs, visit), _each(writes, visit)) for op, args, outs, writes in nodes]
    storages = [replace(s, nbytes=next(rest)) for s in trace.storages]
    assert next(rest, None) is None, "integers are left over"
    return Trace(cast(Any, nodes), storages, table)
