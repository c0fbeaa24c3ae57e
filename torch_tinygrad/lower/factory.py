"""Tensors made from nothing but numbers: constants and index expressions; host data where a device lacks the type that
the CPU counts in."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.lower.angles import cos
from torch_tinygrad.lower.cast import convert
from torch_tinygrad.lower.maths import absolute, constant, fma, index_range, operand, round_even, widen, widest_float
from torch_tinygrad.lower.pointwise import power
from torch_tinygrad.lower.registry import TO_TORCH, Meta, is_number, lowers

aten = torch.ops.aten


def filled(value, result: Meta) -> Tensor:
    if is_number(value):
        return constant(value, result.tiny, result.shape)
    missing = len(result.shape) - value.ndim
    return convert(value, result.tiny).reshape((1,) * missing + tuple(value.shape)).expand(result.shape)


@lowers(aten.full.default, lifts=("fill_value",))
def full(size, value, *, meta):
    return filled(value, meta[0])


@lowers(aten.full_like.default, lifts=("fill_value",))
def full_like(x, value, *, meta):
    return filled(value, meta[0])


@lowers(aten.new_full.default, lifts=("fill_value",))
def new_full(x, size, value, *, meta):
    return filled(value, meta[0])


@lowers(aten.fill.Scalar, aten.fill.Tensor, lifts=("value",))
def fill(x, value, *, meta):
    return filled(value, meta[0])


@lowers(aten.scalar_tensor.default, lifts=("s",))
def scalar_tensor(value, *, meta):
    return filled(value, meta[0])


for _number, _overloads in {
    0: (
        aten.zeros.default,
        aten.zeros_like.default,
        aten.new_zeros.default,
        aten.zero.default,
        aten._efficientzerotensor.default,
    ),
    1: (aten.ones.default, aten.ones_like.default, aten.new_ones.default),
}.items():

    @lowers(*_overloads)
    def constants(*arguments, meta, number=_number):
        return filled(number, meta[0])


@lowers(aten.arange.default)
def arange(end, *, meta):
    return progression(0, 1, meta[0])


@lowers(aten.arange.start)
def arange_start(start, end, *, meta):
    return progression(start, 1, meta[0])


@lowers(aten.arange.start_step)
def arange_step(start, end, step=1, *, meta):
    return progression(start, step, meta[0])


def progression(start, step, result: Meta) -> Tensor:
    """start + i * step, computed in float64 for floats as the CPU does where the numbers are not small integers."""
    index = index_range(result.shape[0])
    if not result.dtype.is_floating_point:
        return index.cast(result.tiny) * int(step) + int(start)
    if float(start).is_integer() and float(step).is_integer() and abs(start) + result.shape[0] * abs(step) < 2**24:
        return (index * int(step) + int(start)).cast(result.tiny)
    return index.cast(widest_float()) * float(step) + float(start)


@lowers(aten.eye.default, aten.eye.m)
def eye(*sizes, meta):
    rows, columns = meta[0].shape
    return index_range(rows).reshape(rows, 1).eq(index_range(columns).reshape(1, columns)).cast(meta[0].tiny)


@lowers(
    aten.linspace.default,
    aten.linspace.Tensor_Tensor,
    aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor,
)
def linspace(start, end, steps, *, meta):
    counted = counted_elsewhere(torch.linspace, start, end, steps, result=meta[0])
    return spaced(start, end, steps, meta[0]) if counted is None else counted


def spaced(start, end, steps: int, result: Meta) -> Tensor:
    """Evenly spaced numbers, counted from the nearer end so that both ends are exact, and rounded once, as on the CPU:
    whole ones are cut, so that the last digit decides."""
    dtype = widen(result.tiny) if result.dtype.is_floating_point else dtypes.float64
    index = index_range(steps).cast(dtype)
    if not result.dtype.is_floating_point:
        start, end = (t.trunc() if isinstance(t, Tensor) else int(t) for t in (start, end))
    start, end = operand(start, dtype), operand(end, dtype)
    if steps == 1:
        return convert(start.reshape(1), result.tiny)
    start, end, step = (t.reshape(1).expand(steps) for t in (start, end, (end - start) / (steps - 1)))
    values = (index < steps // 2).where(fma(step, index, start), fma(-step, (steps - 1) - index, end))
    return convert(values, result.tiny)


def counted_elsewhere(operator, *numbers, result: Meta) -> Tensor | None:
    """Whole numbers where the last digit of a float64 decides, on devices that have none: the CPU's own."""
    if result.dtype.is_floating_point or widest_float() == dtypes.float64:
        return None
    if any(isinstance(number, Tensor) for number in numbers):
        raise NotImplementedError(f"{operator} of whole numbers between values of tensors needs float64")
    return Tensor(operator(*numbers, dtype=result.dtype).tolist(), dtype=result.tiny)


@lowers(
    aten.logspace.default,
    aten.logspace.Tensor_Tensor,
    aten.logspace.Tensor_Scalar,
    aten.logspace.Scalar_Tensor,
)
def logspace(start, end, steps, base=10.0, *, meta):
    """Powers of evenly spaced numbers. Whole results are powers of single-precision numbers between whole ones, as on
    the CPU, and exact where they are whole before they are cut."""
    result, wide = meta[0], Meta(meta[0].shape, TO_TORCH[widest_float()])
    counted = counted_elsewhere(torch.logspace, start, end, steps, base, result=result)
    if counted is not None:
        return counted
    if result.dtype.is_floating_point:
        return convert(power(base, spaced(start, end, steps, wide), meta=(wide,)), result.tiny)
    start, end = (t.trunc() if isinstance(t, Tensor) else int(t) for t in (start, end))
    exponents = spaced(start, end, steps, Meta(result.shape, torch.float32)).cast(wide.tiny)
    values = power(base, exponents, meta=(wide,))
    nearest = round_even(values)
    is_whole = absolute(values - nearest) <= absolute(values) * 1e-12
    return convert(is_whole.where(nearest, values), result.tiny)


@lowers(aten.range.default, aten.range.step)
def range_(start, end, step=1, *, meta):
    return progression(start, step, meta[0])


def cosine_window(*weights: float):
    """A window that is a sum of weights[k] * (-1)**k * cos(k * turn) over one turn."""

    def compute(turn: Tensor) -> Tensor:
        return sum((-1) ** k * weight * (1.0 if k == 0 else cos(turn * k)) for k, weight in enumerate(weights))

    return compute


WINDOWS = {
    aten.hamming_window: cosine_window(0.54, 0.46),
    aten.hann_window: cosine_window(0.5, 0.5),
    aten.blackman_window: cosine_window(0.42, 0.5, 0.08),
    aten.bartlett_window: lambda turn: 1.0 - absolute(turn * (1 / math.pi) - 1.0),
}
for _op, _compute in WINDOWS.items():

    @lowers(_op.default, _op.periodic)
    def window(length, periodic=True, *, meta, compute=_compute):
        return windowed(length, periodic, meta[0], compute)


@lowers(aten.hamming_window.periodic_alpha, aten.hamming_window.periodic_alpha_beta)
def hamming_window(length, periodic, alpha, beta=0.46, *, meta):
    return windowed(length, periodic, meta[0], cosine_window(alpha, beta))


def windowed(length: int, periodic: bool, result: Meta, compute) -> Tensor:
    if length <= 1:
        return constant(1, result.tiny, result.shape)
    turn = index_range(length).cast(widen(result.tiny)) * (2 * math.pi / (length if periodic else length - 1))
    return compute(turn)
