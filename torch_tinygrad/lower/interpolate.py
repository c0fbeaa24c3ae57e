"""Resampling: in each dimension a mode is one weight function of (output, input) position. The forward pass sums it
over the inputs near an output, the gradient over the outputs near an input."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

from . import angles
from . import resample_bytes as bytewise
from .matmul import accumulator
from .registry import lowers
from .taps import positions, take

aten = torch.ops.aten
UNROLLED_TAPS = 4


def rounded(value: float, kept: DType) -> float:
    """PyTorch computes scales in the type it computes positions in."""
    return struct.unpack("f", struct.pack("f", value))[0] if kept == dtypes.float32 else value


@dataclass(frozen=True)
class Axis:
    """One dimension's geometry: input and output sizes, and how far one step of the output moves in the input."""

    size: int
    outputs: int
    scale: float
    align_corners: bool
    kept: DType

    def source(self, output: Tensor) -> Tensor:
        """The real input position under an output's centre."""
        output = output.cast(self.kept)
        return output * self.scale if self.align_corners else (output + 0.5) * self.scale - 0.5

    def output_window(self, reach: float) -> tuple[Tensor, int]:
        """For each input, the first output that may lie within `reach` of it and how many follow. One more on either
        side covers rounding; borders, where positions are clamped, reach no further than the last input."""
        inputs = positions(self.size).cast(self.kept)
        shift = 0.0 if self.align_corners else 0.5
        if self.scale == 0:
            return positions(self.size) * 0, self.outputs
        first = ((inputs - reach + shift) / self.scale - shift).floor() - 1
        return first.cast(dtypes.int32).maximum(0), min(math.ceil(2 * reach / self.scale) + 4, self.outputs)


@dataclass(frozen=True)
class Mode:
    """`first(axis, output)` and `taps(axis)` say which inputs an output reads, `weight(axis, output, input)` how much
    of each, and `reach(axis)` how far from an output's centre they lie."""

    first: Callable[[Axis, Tensor], Tensor]
    taps: Callable[[Axis], int]
    weight: Callable[[Axis, Tensor, Tensor], Tensor]
    reach: Callable[[Axis], float]


def nearest_index(axis: Axis, output: Tensor) -> Tensor:
    return (output.cast(axis.kept) * axis.scale).floor().cast(dtypes.int32).minimum(axis.size - 1)


def nearest_exact_index(axis: Axis, output: Tensor) -> Tensor:
    return ((output.cast(axis.kept) + 0.5) * axis.scale).floor().cast(dtypes.int32).minimum(axis.size - 1)


def indicator(index: Callable[[Axis, Tensor], Tensor]) -> Callable[[Axis, Tensor, Tensor], Tensor]:
    return lambda axis, output, source: (index(axis, output) == source).cast(axis.kept)


def linear_parts(axis: Axis, output: Tensor) -> tuple[Tensor, Tensor]:
    source = axis.source(output)
    source = source if axis.align_corners else source.maximum(0)
    low = source.floor().cast(dtypes.int32).minimum(axis.size - 1)
    return low, (source - low.cast(axis.kept)).maximum(0).minimum(1)


def linear_weight(axis: Axis, output: Tensor, source: Tensor) -> Tensor:
    low, part = linear_parts(axis, output)
    high = (low + 1).minimum(axis.size - 1)
    return (low == source).where(1 - part, 0) + (high == source).where(part, 0)


def cubic_near(x: Tensor, a: float) -> Tensor:
    return ((a + 2) * x - (a + 3)) * x * x + 1


def cubic_far(x: Tensor, a: float) -> Tensor:
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def cubic_first(axis: Axis, output: Tensor) -> Tensor:
    return (axis.source(output).floor().cast(dtypes.int32) - 1).maximum(0)


def cubic_weight(axis: Axis, output: Tensor, source: Tensor) -> Tensor:
    real = axis.source(output)
    floor = real.floor()
    part, base, a = real - floor, floor.cast(dtypes.int32), -0.75
    coefficients = (cubic_far(part + 1, a), cubic_near(part, a), cubic_near(1 - part, a), cubic_far(2 - part, a))
    total = None
    for tap, coefficient in enumerate(coefficients):
        place = (base + (tap - 1)).maximum(0).minimum(axis.size - 1)
        share = (place == source).where(coefficient, 0)
        total = share if total is None else total + share
    return total


def triangle(x: Tensor) -> Tensor:
    x = x.abs()
    return (x < 1).where(1 - x, 0)


def keys(x: Tensor) -> Tensor:
    x, a = x.abs(), -0.5
    return (x < 1).where(cubic_near(x, a), (x < 2).where(cubic_far(x, a), 0))


def lanczos(x: Tensor) -> Tensor:
    def sinc(y: Tensor) -> Tensor:
        y = y * math.pi
        return (y == 0).where(1, angles.sin(y) / (y == 0).where(1, y))

    return (x.abs() < 3).where(sinc(x) * sinc(x / 3), 0)


def antialiased(filter_: Callable[[Tensor], Tensor], width: int) -> Mode:
    """A filter stretched over the inputs that one output covers, with weights that sum to one."""

    def support(axis: Axis) -> float:
        return width * 0.5 * max(axis.scale, 1.0)

    def centre(axis: Axis, output: Tensor) -> Tensor:
        return (output.cast(axis.kept) + 0.5) * axis.scale

    def first(axis: Axis, output: Tensor) -> Tensor:
        return (centre(axis, output) - support(axis) + 0.5).cast(dtypes.int32).maximum(0)

    def taps(axis: Axis) -> int:
        return min(math.ceil(support(axis)) * 2 + 1, axis.size)

    def end(axis: Axis, output: Tensor) -> Tensor:
        return (centre(axis, output) + support(axis) + 0.5).cast(dtypes.int32).minimum(axis.size)

    def raw(axis: Axis, output: Tensor, source: Tensor) -> Tensor:
        stretch = 1.0 / max(axis.scale, 1.0)
        value = filter_((source.cast(axis.kept) - centre(axis, output) + 0.5) * stretch)
        inside = (source >= first(axis, output)) & (source < end(axis, output))
        return inside.where(value, 0)

    def weight(axis: Axis, output: Tensor, source: Tensor) -> Tensor:
        reads = first(axis, output).unsqueeze(-1) + positions(taps(axis))
        total = raw(axis, output.unsqueeze(-1), reads).sum(-1)
        return raw(axis, output, source) / (total == 0).where(1, total)

    return Mode(first, taps, weight, lambda axis: support(axis) + 1)


MODES: dict[str, Mode] = {
    "nearest": Mode(nearest_index, lambda axis: 1, indicator(nearest_index), lambda axis: 1.0 + axis.scale),
    "nearest_exact": Mode(
        nearest_exact_index, lambda axis: 1, indicator(nearest_exact_index), lambda axis: 1.0 + axis.scale
    ),
    "linear": Mode(lambda axis, output: linear_parts(axis, output)[0], lambda axis: 2, linear_weight, lambda axis: 1.0),
    "cubic": Mode(cubic_first, lambda axis: 4, cubic_weight, lambda axis: 2.5),
    "linear_aa": antialiased(triangle, 2),
    "cubic_aa": antialiased(keys, 4),
    "lanczos_aa": antialiased(lanczos, 6),
}


def axes_of(sizes, outputs, scales, align_corners: bool | None, kept: DType) -> list[Axis]:
    """`align_corners` None: a nearest mode."""
    axes = []
    for size, count, factor in zip(sizes, outputs, scales, strict=True):
        if align_corners:
            scale = (size - 1) / (count - 1) if count > 1 else 0.0
        else:
            scale = 1.0 / factor if factor is not None and factor > 0 else size / count
        axes.append(Axis(size, count, rounded(scale, kept), bool(align_corners), kept))
    return axes


def weighted(x: Tensor, dim: int, index: Tensor, weight: Callable[[Tensor], Tensor], taps: int) -> Tensor:
    """Sum over taps t of x[index + t] * weight(index + t) along `dim`."""
    after = (1,) * (x.ndim - dim - 1)
    if taps <= UNROLLED_TAPS:
        result = None
        for tap in range(taps):
            place = index + tap if tap else index
            part = take(x, dim, place) * weight(place).reshape(-1, *after)
            result = part if result is None else result + part
        return result
    places = index.unsqueeze(1) + positions(taps)
    parts = take(x, dim, places) * weight(places).reshape(places.shape[0], taps, *after)
    return parts.sum(dim + 1, dtype=x.dtype)


def resample(mode: Mode, x: Tensor, axes: list[Axis]) -> Tensor:
    for dim, axis in enumerate(axes, start=2):
        if mode.taps(axis) == 1:
            x = take(x, dim, mode.first(axis, positions(axis.outputs)))
            continue
        output = positions(axis.outputs)
        taps = mode.taps(axis)
        output = output.unsqueeze(1) if taps > UNROLLED_TAPS else output

        def weight(places: Tensor, axis=axis, output=output) -> Tensor:
            return mode.weight(axis, output, places)

        x = weighted(x, dim, mode.first(axis, positions(axis.outputs)), weight, taps)
    return x


def resample_backward(mode: Mode, grad: Tensor, axes: list[Axis]) -> Tensor:
    for dim, axis in enumerate(axes, start=2):
        first, taps = axis.output_window(mode.reach(axis))
        source = positions(axis.size)
        source = source.unsqueeze(1) if taps > UNROLLED_TAPS else source

        def weight(places: Tensor, axis=axis, source=source) -> Tensor:
            return mode.weight(axis, places, source)

        grad = weighted(grad, dim, first, weight, taps)
    return grad


def register(name: str, kind: str, rank: int, has_corners: bool) -> None:
    mode = MODES[kind]

    def split(arguments) -> tuple[bool | None, tuple]:
        corners = bool(arguments[0]) if has_corners else None
        scales = tuple(arguments[1:] if has_corners else arguments)
        return corners, scales + (None,) * (rank - len(scales))

    @lowers(getattr(aten, name).default)
    def forward(x: Tensor, output_size, *arguments, meta) -> Tensor:
        if 0 in meta[0].shape:
            return Tensor.zeros(*meta[0].shape, dtype=x.dtype)
        corners, scales = split(arguments)
        if x.dtype == dtypes.uint8 and kind in bytewise.WAYS:
            return bytewise.resample(kind, x, axes_of(x.shape[2:], output_size, scales, corners, dtypes.float64))
        kept = accumulator(x.dtype) if dtypes.is_float(x.dtype) else dtypes.float32
        values = x if mode.first in (nearest_index, nearest_exact_index) else x.cast(kept)
        return resample(mode, values, axes_of(x.shape[2:], output_size, scales, corners, kept))

    if not hasattr(aten, f"{name}_backward"):
        return

    @lowers(getattr(aten, f"{name}_backward").default)
    def backward(grad: Tensor, output_size, input_size, *arguments) -> Tensor:
        if 0 in grad.shape or 0 in input_size:
            return Tensor.zeros(*input_size, dtype=grad.dtype)
        corners, scales = split(arguments)
        kept = accumulator(grad.dtype)
        return resample_backward(mode, grad.cast(kept), axes_of(input_size[2:], output_size, scales, corners, kept))


# operator, mode, rank, whether it takes align_corners
OPERATORS = [
    *((f"upsample_nearest{r}d", "nearest", r, False) for r in (1, 2, 3)),
    *((f"_upsample_nearest_exact{r}d", "nearest_exact", r, False) for r in (1, 2, 3)),
    ("upsample_linear1d", "linear", 1, True),
    ("upsample_bilinear2d", "linear", 2, True),
    ("upsample_trilinear3d", "linear", 3, True),
    ("upsample_bicubic2d", "cubic", 2, True),
    ("_upsample_bilinear2d_aa", "linear_aa", 2, True),
    ("_upsample_bicubic2d_aa", "cubic_aa", 2, True),
    ("_upsample_lanczos2d_aa", "lanczos_aa", 2, True),
]
for _name, _mode, _rank, _has_corners in OPERATORS:
    if hasattr(aten, _name):  # Lanczos filters came with PyTorch 2.13
        register(_name, _mode, _rank, _has_corners)


@lowers(aten.pixel_shuffle.default)
def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    *lead, channels, height, width = x.shape
    n = len(lead)
    x = x.reshape(*lead, channels // factor**2, factor, factor, height, width)
    x = x.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return x.reshape(*lead, channels // factor**2, height * factor, width * factor)


@lowers(aten.pixel_unshuffle.default)
def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    *lead, channels, height, width = x.shape
    n = len(lead)
    x = x.reshape(*lead, channels, height // factor, factor, width // factor, factor)
    x = x.permute(*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return x.reshape(*lead, channels * factor**2, height // factor, width // factor)


@lowers(aten.channel_shuffle.default)
def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    batch, channels, *sizes = x.shape
    return x.reshape(batch, groups, channels // groups, *sizes).transpose(1, 2).reshape(x.shape)
