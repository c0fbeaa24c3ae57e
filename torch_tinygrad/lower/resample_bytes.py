"""Resampling of bytes, which PyTorch does in whole numbers: one dimension after the other, the last one first, with
weights of 16 bits, and rounded and cut off to a byte after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, pi, sin
from typing import Protocol

from tinygrad import Tensor, dtypes

from .taps import positions, take

MOST_PRECISION = 22


class Geometry(Protocol):
    """One dimension: input and output sizes, and how far one step of the output moves in the input."""

    @property
    def size(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def scale(self) -> float: ...
    @property
    def align_corners(self) -> bool: ...


Filter = Callable[[float], float]
# An output's first input, and a weight for each from there on.
Taps = tuple[int, list[float]]


def triangle(x: float) -> float:
    return max(1.0 - abs(x), 0.0)


def cubic(a: float) -> Filter:
    def weight(x: float) -> float:
        x = abs(x)
        if x < 1.0:
            return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
        return (((x - 5.0) * x + 8.0) * x - 4.0) * a if x < 2.0 else 0.0

    return weight


def lanczos(x: float) -> float:
    def sinc(y: float) -> float:
        return sin(pi * y) / (pi * y) if y != 0.0 else 1.0

    return sinc(x) * sinc(x / 3.0) if -3.0 <= x < 3.0 else 0.0


def interpolated(axis: Geometry, output: int, weight: Filter, width: int) -> Taps:
    """The inputs around an output's centre; those beyond a border are the border."""
    source = axis.scale * output if axis.align_corners else axis.scale * (output + 0.5) - 0.5
    source = max(source, 0.0) if width == 2 else source
    base = min(floor(source), axis.size - 1)
    part = min(max(source - base, 0.0), 1.0)
    reach = width // 2
    first = max(base - reach + 1, 0)
    weights = [0.0] * width
    for tap in range(width):
        place = min(max(base - reach + 1 + tap, 0), axis.size - 1)
        weights[place - first] += weight(tap + 1 - reach - part)
    return first, weights


def antialiased(axis: Geometry, output: int, weight: Filter, width: int) -> Taps:
    """All inputs that an output covers, with weights that sum to one."""
    stretch = max(axis.scale, 1.0)
    reach, centre = width * 0.5 * stretch, axis.scale * (output + 0.5)
    first = max(int(centre - reach + 0.5), 0)
    count = min(int(centre + reach + 0.5), axis.size) - first
    weights = [weight((tap + first - centre + 0.5) / stretch) for tap in range(min(count, ceil(reach) * 2 + 1))]
    total = sum(weights)
    return first, [w / total for w in weights] if total != 0.0 else weights


# mode → how an output's inputs are found, the weights, how many inputs they reach over
WAYS: dict[str, tuple[Callable[[Geometry, int, Filter, int], Taps], Filter, int]] = {
    "linear": (interpolated, triangle, 2),
    "cubic": (interpolated, cubic(-0.75), 4),
    "linear_aa": (antialiased, triangle, 2),
    "cubic_aa": (antialiased, cubic(-0.5), 4),
    "lanczos_aa": (antialiased, lanczos, 6),
}


def whole_weights(taps: list[Taps]) -> tuple[list[list[int]], int]:
    """Weights as integers, with as many digits as 16 bits hold, and how many those are."""
    most = max(0.0, *(w for _, weights in taps for w in weights))
    precision = 0
    while precision < MOST_PRECISION and int(0.5 + most * (1 << (precision + 1))) < 1 << 15:
        precision += 1
    reach = max(len(weights) for _, weights in taps)
    scaled = [[w * (1 << precision) for w in weights] for _, weights in taps]
    return [[int(w - 0.5 if w < 0 else w + 0.5) for w in row] + [0] * (reach - len(row)) for row in scaled], precision


def resample(mode: str, x: Tensor, axes: Sequence[Geometry]) -> Tensor:
    find, weight, width = WAYS[mode]
    for dim, axis in reversed(list(enumerate(axes, start=2))):
        if axis.size == axis.outputs:
            continue
        taps = [find(axis, output, weight, width) for output in range(axis.outputs)]
        table, precision = whole_weights(taps)
        reach = len(table[0])
        after = (1,) * (x.ndim - dim - 1)
        weights = Tensor(table, dtype=dtypes.int32, device=x.device).reshape(axis.outputs, reach, *after)
        first = Tensor([start for start, _ in taps], dtype=dtypes.int32, device=x.device)
        places = (first.unsqueeze(1) + positions(reach)).minimum(axis.size - 1)
        total = (take(x.cast(dtypes.int32), dim, places) * weights).sum(dim + 1, dtype=dtypes.int32)
        x = ((total + (1 << (precision - 1))) // (1 << precision)).maximum(0).minimum(255)
    return x
