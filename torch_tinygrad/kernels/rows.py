"""Softmax and layer norm on devices with groups of threads: a group a row, which passes over the row once for each sum
and once to write. The row stays in the caches meanwhile, where kernels over all rows read it from memory each time
(H200, 64 Mi floats: three kernels took two to three times as long)."""

from __future__ import annotations

from collections.abc import Callable
from math import e, inf, log2, prod

from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType
from tinygrad.uop.ops import UOp

from torch_tinygrad.target import target

from .loops import MOST_LANES, Loops, run_into
from .threads import in_parallel

# Elements of a row that are worth a group of threads.
LONG = 256
# What is computed with, whatever the row's own dtype.
KEPT = dtypes.float32
ROWS = (dtypes.float32, dtypes.float16, dtypes.bfloat16)


def worth(x: Tensor, last: int) -> bool:
    """Whether what is computed along the last dimensions had better be computed row by row."""
    return in_parallel(x) and x.dtype in ROWS and x.numel() > 0 and prod(x.shape[-last:]) >= LONG


class Row:
    """The group's row of a tensor."""

    def __init__(self, loops: Loops, flat: UOp, width: int):
        self.loops, self.flat, self.width = loops, flat, width

    def at(self, i: UOp) -> UOp:
        return self.loops.problem * self.width + i

    def __getitem__(self, i: UOp) -> UOp:
        return self.loops.load(self.flat, self.at(i)).cast(KEPT)

    def sum(self, element: Callable[[UOp], UOp]) -> UOp:
        return self.loops.reduce(self.width, lambda i: element(self[i]), UOp.__add__, UOp.const(0.0, KEPT))

    def max(self) -> UOp:
        return self.loops.reduce(self.width, self.__getitem__, UOp.maximum, UOp.const(-inf, KEPT))


def softmax(x: Tensor, result: DType) -> Tensor:
    """Along the last dimension."""
    return _softmax(x, result, lambda shifted, total: _exp(shifted) / total)


def log_softmax(x: Tensor, result: DType) -> Tensor:
    return _softmax(x, result, lambda shifted, total: shifted - total.log2() * (1 / log2(e)))


def _softmax(x: Tensor, result: DType, finished: Callable[[UOp, UOp], UOp]) -> Tensor:
    width = x.shape[-1]

    def body(loops: Loops, out: UOp, x: UOp) -> None:
        row = Row(loops, x, width)
        most = row.max()
        total = row.sum(lambda value: _exp(value - most))
        with loops.share(width) as i:
            loops.store((out, row.at(i), finished(row[i] - most, total).cast(result)))

    outs = [_empty(x.numel(), result, x)]
    (out,) = run_into("softmax", body, x.numel() // width, width, outs, x, most_lanes=_lanes(x, width))
    return out.reshape(x.shape)


def layer_norm(x: Tensor, last: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    """Over the last dimensions: the normalised, and each row's mean and inverse deviation in single precision."""
    outer = x.shape[:-last]
    width, count = prod(x.shape[-last:]), prod(outer)
    result = x.dtype

    def body(loops: Loops, out: UOp, means: UOp, deviations: UOp, x: UOp, *scales: UOp) -> None:
        row = Row(loops, x, width)
        mean = row.sum(lambda value: value) * (1 / width)
        variance = row.sum(lambda value: (value - mean) * (value - mean)) * (1 / width)
        deviation = (variance + eps).sqrt().reciprocal()
        with loops.share(width) as i:
            value = (row[i] - mean) * deviation
            if weight is not None:
                value = value * loops.load(scales[0], i).cast(KEPT)
            if bias is not None:
                value = value + loops.load(scales[-1], i).cast(KEPT)
            loops.store((out, row.at(i), value.cast(result)))
        with loops.share(1):
            loops.store((means, loops.problem, mean), (deviations, loops.problem, deviation))

    outs = [_empty(x.numel(), result, x), _empty(count, KEPT, x), _empty(count, KEPT, x)]
    scales = [p for p in (weight, bias) if p is not None]
    lanes = _lanes(x, width)
    out, mean, deviation = run_into("layer_norm", body, count, width, outs, x, *scales, most_lanes=lanes)
    each = (*outer, *(1,) * last)
    return out.reshape(x.shape), mean.reshape(each), deviation.reshape(each)


def _lanes(x: Tensor, width: int) -> int:
    """How many threads may share a row: some devices have twice as many in a group as all have."""
    most = target(x.device).most_threads
    return 2 * MOST_LANES if most >= 2 * MOST_LANES and width >= 8 * MOST_LANES else MOST_LANES


def _exp(value: UOp) -> UOp:
    return (value * log2(e)).exp2()


def _empty(size: int, dtype: DType, like: Tensor) -> Tensor:
    return Tensor.empty(size, dtype=dtype, device=like.device)
