"""Strided regions of a flat array, as movement operations and as sets: how a region is read and written with reshape,
shrink, pad, permute, expand and flip, and whether two regions meet. Pure arithmetic on a handful of dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from torch_tinygrad.trace.decisions import note_apart
from torch_tinygrad.trace.nodes import Region

Step = tuple[str, tuple]
Term = tuple[int, int, int]

_SEARCH_BUDGET = 256


def read_plan(n: int, size: Sequence[int], stride: Sequence[int], offset: int) -> list[Step] | None:
    """Steps from a flat array of `n` elements to the strided view, or None where strides do not nest."""
    dims, offset = _nontrivial(size, stride, offset)
    if not _nests(dims):
        return None
    steps, shape = _lattice_steps(n, _merged([(z, s) for _, z, s, _ in dims]), offset)
    kept = [axis for axis, *_ in dims]
    ones = [axis for axis in range(len(size)) if axis not in kept]
    if kept == sorted(kept):
        order = list(range(len(size)))
    else:
        order = kept + ones
    target = tuple(size[axis] if axis in kept else 1 for axis in order)
    if target != shape:
        steps.append(("reshape", target))
    if order != sorted(order):
        steps.append(("permute", tuple(order.index(axis) for axis in range(len(size)))))
    if flipped := tuple(sorted(axis for axis, _, _, negative in dims if negative)):
        steps.append(("flip", flipped))
    if any(size[axis] != 1 for axis in ones):
        steps.append(("expand", tuple(size)))
    return _joined(steps, (n,))


def write_plan(n: int, size: Sequence[int], stride: Sequence[int], offset: int) -> list[Step] | None:
    """Steps from a value of shape `size` to a flat array of `n` elements with zeros around it: `read_plan` backwards.
    None where the region meets itself or strides do not nest."""
    forward = read_plan(n, size, stride, offset)
    if forward is None or any(kind == "expand" for kind, _ in forward):
        return None
    shapes: list[tuple[int, ...]] = [(n,)]
    for step in forward:
        shapes.append(shape_after(shapes[-1], step))
    backward = [_inverse(step, before) for step, before in zip(forward, shapes[:-1], strict=True)]
    return _joined(list(reversed(backward)), tuple(size))


def shape_after(shape: tuple[int, ...], step: Step) -> tuple[int, ...]:
    """The shape one step makes of `shape`."""
    kind, argument = step
    if kind in ("reshape", "expand"):
        return argument
    if kind == "shrink":
        return tuple(hi - lo for lo, hi in argument)
    if kind == "pad":
        return tuple(z + before + after for z, (before, after) in zip(shape, argument, strict=True))
    if kind == "permute":
        return tuple(shape[axis] for axis in argument)
    return shape


def extent(size: Sequence[int], stride: Sequence[int], offset: int) -> tuple[int, int]:
    """The half-open interval of elements between the region's first and last; empty regions have an empty one."""
    if not size:
        return offset, offset + 1
    if 0 in size:
        return offset, offset
    reach = [(z - 1) * s for z, s in zip(size, stride, strict=True)]
    return offset + sum(r for r in reach if r < 0), offset + sum(r for r in reach if r > 0) + 1


def covers(n: int, size: Sequence[int], stride: Sequence[int], offset: int) -> bool:
    """Whether the region holds each of the `n` elements exactly once (intervals only split into nested strides)."""
    if 0 in size or n == 0:
        return n == 0 and 0 in size
    if prod(size) != n:
        return False
    dims, offset = _nontrivial(size, stride, offset)
    return offset == 0 and _merged([(z, s) for _, z, s, _ in dims]) in ([], [(n, 1)]) and len(dims) == _real_dims(size)


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Contiguous strides."""
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def is_contiguous(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Row-major without gaps; strides of size-1 dimensions do not matter."""
    expected = 1
    for z, s in zip(reversed(size), reversed(stride), strict=True):
        if z != 1 and s != expected:
            return 0 in size
        expected *= z
    return True


def overlaps(a: Region, b: Region) -> bool:
    """Whether two regions share an element. False is always certain; True may be cautious for intricate strides."""
    return a.storage == b.storage and families_meet(a, b, ())


def families_meet(a: Region, b: Region, shifts: Sequence[Term]) -> bool:
    """Whether `a` meets `b` moved by any sum of `shifts`: terms (step, lowest, highest) in elements, the same for both.
    This is `overlaps` for families of regions; the storages are taken to be the same."""
    if 0 in a.size or 0 in b.size:
        return False
    if a.moves != b.moves:
        return True
    unit_a = unit_b = 1
    terms = [(-step, low, high) for step, low, high in shifts]
    if a.dtype != b.dtype:
        unit_a, unit_b = a.dtype.itemsize, b.dtype.itemsize
        if unit_a == unit_b:
            unit_a = unit_b = 1
        else:
            if shifts:
                return True
            terms += [(1, 0, unit_a - 1), (-1, 0, unit_b - 1)]
    terms += [(unit_a * s, 0, z - 1) for z, s in zip(a.size, a.stride, strict=True)]
    terms += [(-unit_b * s, 0, z - 1) for z, s in zip(b.size, b.stride, strict=True)]
    return reachable(b.offset * unit_b - a.offset * unit_a, terms)


def meets_itself(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two different indices of a region name the same element."""
    if 0 in size:
        return False
    dims, _ = _nontrivial(size, stride, 0)
    if len(dims) != _real_dims(size):
        return True
    if _nests(dims):
        return False
    both = [(s, 1 - z, z - 1) for _, z, s, _ in dims]
    return any(reachable(0, both[:i] + [(s, 1, high)] + both[i + 1 :]) for i, (s, _, high) in enumerate(both))


def contains_exactly_same(a: Region, b: Region) -> bool:
    """Whether two regions hold the same elements of the same storage, in whatever order. False may be cautious."""
    if (a.storage, a.dtype, a.moves) != (b.storage, b.dtype, b.moves):
        return False
    if 0 in a.size or 0 in b.size:
        return 0 in a.size and 0 in b.size
    return element_set(a) == element_set(b)


def reachable(target: int, terms: Sequence[Term]) -> bool:
    """Whether `target` is a sum of step * t with low <= t <= high over all terms. Exact for what a small search
    decides (nested steps take a handful of tries), True beyond it."""
    ranges: dict[int, list[int]] = {}
    for step, low, high in terms:
        if step < 0:
            step, low, high = -step, -high, -low
        if step and (low or high):
            both = ranges.setdefault(step, [0, 0])
            both[0] += low
            both[1] += high
    steps = sorted(ranges, reverse=True)
    lows, highs, divisors = [0], [0], [0]
    for step in reversed(steps):
        low, high = ranges[step]
        lows.append(lows[-1] + step * low)
        highs.append(highs[-1] + step * high)
        divisors.append(gcd(divisors[-1], step))
    lows, highs, divisors = lows[::-1], highs[::-1], divisors[::-1]
    if not lows[0] <= target <= highs[0]:
        return False
    pending = [(0, target)]
    for _ in range(_SEARCH_BUDGET):
        if not pending:
            note_apart(target, tuple(terms))
            return False
        level, rest = pending.pop()
        if not lows[level] <= rest <= highs[level] or (rest % divisors[level] if divisors[level] else rest):
            continue
        if level >= len(steps) - 1:
            return True
        step, (low, high) = steps[level], ranges[steps[level]]
        first = max(low, -((highs[level + 1] - rest) // step))
        last = min(high, (rest - lows[level + 1]) // step)
        if last - first > _SEARCH_BUDGET:
            return True
        pending.extend((level + 1, rest - step * t) for t in range(first, last + 1))
    return bool(pending)


def _real_dims(size: Sequence[int]) -> int:
    return sum(z != 1 for z in size)


def _nontrivial(size: Sequence[int], stride: Sequence[int], offset: int):
    """The dimensions that move, as (axis, size, |stride|, negative), largest stride first, and the lowest offset."""
    dims = []
    for axis, (z, s) in enumerate(zip(size, stride, strict=True)):
        if z != 1 and s != 0:
            dims.append((axis, z, abs(s), s < 0))
            offset += min(0, s * (z - 1))
    dims.sort(key=lambda dim: -dim[2])
    return dims, offset


def _nests(dims) -> bool:
    inner = 1
    for _, z, s, _ in reversed(dims):
        if s < inner:
            return False
        inner += (z - 1) * s
    return True


def _merged(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins neighbouring dimensions that walk memory as one would."""
    out: list[tuple[int, int]] = []
    for z, s in dims:
        if out and out[-1][1] == z * s:
            out[-1] = (out[-1][0] * z, s)
        else:
            out.append((z, s))
    return out


def element_set(region: Region) -> tuple[int, list[tuple[int, int]]]:
    """What a region holds, in whatever order: the lowest element, and (size, stride) of its merged dimensions."""
    dims, offset = _nontrivial(region.size, region.stride, region.offset)
    return offset, _merged([(z, s) for _, z, s, _ in dims])


def _lattice_steps(n: int, dims: list[tuple[int, int]], offset: int) -> tuple[list[Step], tuple[int, ...]]:
    """Steps from the flat array to one axis per dimension of a nested lattice (and a trailing axis of size 1 where
    nothing has stride 1). Axes are split off the last one, whose wanted part is `window`; shrinks wait in `windows`
    until a pad or an uneven split needs them, so that an evenly divided array takes one reshape and one shrink."""
    steps: list[Step] = []
    shape: list[int] = [n]
    windows: list[tuple[int, int]] = []
    low = offset
    inner = 1 + sum((z - 1) * s for z, s in dims)

    def cut() -> None:
        nonlocal shape, windows
        if any(hi - lo != z for (lo, hi), z in zip(windows, shape, strict=True)):
            steps.append(("shrink", tuple(windows)))
        shape = [hi - lo for lo, hi in windows]
        windows = [(0, z) for z in shape]

    for z, s in dims:
        inner -= (z - 1) * s
        length = shape[-1]
        if s == 1:
            break
        start, count = _even_split(length, z, s, low, inner)
        if start is None:
            windows.append((low, low + (z - 1) * s + inner))
            cut()
            missing = z * s - shape[-1]
            steps.append(("pad", ((0, 0),) * (len(shape) - 1) + ((0, missing),)))
            start, count, low = 0, z, 0
            windows.pop()
        elif count * s != length:
            windows.append((start, start + count * s))
            cut()
            windows.pop()
            low -= start
        shape[-1:] = [count, s]
        steps.append(("reshape", tuple(shape)))
        windows.append((low // s, low // s + z))
        low %= s
    width = dims[-1][0] if dims and dims[-1][1] == 1 else 1
    windows.append((low, low + width))
    cut()
    return steps, tuple(shape)


def _even_split(length: int, z: int, s: int, low: int, inner: int) -> tuple[int | None, int]:
    """Where to cut an axis so that it splits into (count, s) with the wanted part of every row inside it, without a
    pad: the whole axis if it divides, else z rows around the part. (None, 0) if there is no room."""
    if length % s == 0 and low % s + inner <= s:
        return 0, length // s
    start = max(0, low + inner - s)
    latest = min(low, length - z * s)
    return (latest, z) if start <= latest else (None, 0)


def _inverse(step: Step, before: tuple[int, ...]) -> Step:
    kind, argument = step
    if kind == "reshape":
        return "reshape", before
    if kind == "shrink":
        return "pad", tuple((lo, z - hi) for z, (lo, hi) in zip(before, argument, strict=True))
    if kind == "pad":
        return "shrink", tuple((front, front + z) for z, (front, _) in zip(before, argument, strict=True))
    if kind == "permute":
        return "permute", tuple(argument.index(axis) for axis in range(len(argument)))
    return step


def _joined(steps: list[Step], shape: tuple[int, ...]) -> list[Step]:
    """The same steps with runs of reshapes joined and steps that change nothing left out."""
    out: list[Step] = []
    shapes = [shape]
    for step in steps:
        if step[0] == "reshape" and out and out[-1][0] == "reshape":
            out.pop()
            shapes.pop()
        after = shape_after(shapes[-1], step)
        if step[0] == "reshape" and after == shapes[-1]:
            continue
        out.append(step)
        shapes.append(after)
    return out
