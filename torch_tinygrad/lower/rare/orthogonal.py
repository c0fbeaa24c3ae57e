"""Orthogonal polynomials: three-term recurrences, as many steps for each element as its degree says; inside (-1, 1)
Chebyshev's of higher degrees are trigonometric functions of the angle, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels.arrays import zeros

from ...kernels.loops import Loops, Value, run_each
from .. import angles
from .. import maths as m
from ..registry import lowers
from ..trigonometry import acos

aten = torch.ops.aten

# The polynomial of degree k+1 from x, the ones of degrees k and k-1, and k.
Step = Callable[[Value, Value, Value, Value], Value]


def chebyshev_step(x, now, before, k):
    return (x + x) * now - before


STEPS: dict[str, Step] = {
    "hermite_polynomial_h": lambda x, now, before, k: (x + x) * now - (k + k) * before,
    "hermite_polynomial_he": lambda x, now, before, k: x * now - k * before,
    "laguerre_polynomial_l": lambda x, now, before, k: ((k + k + (1 - x)) * now - k * before) / (k + 1),
    "legendre_polynomial_p": lambda x, now, before, k: ((k + k + 1) * x * now - k * before) / (k + 1),
}
FIRST: dict[str, Callable[[Tensor], Tensor]] = {
    "hermite_polynomial_h": lambda x: x + x,
    "hermite_polynomial_he": lambda x: x,
    "laguerre_polynomial_l": lambda x: 1.0 - x,
    "legendre_polynomial_p": lambda x: x,
    "t": lambda x: x,
    "u": lambda x: x + x,
    "v": lambda x: x + x - 1.0,
    "w": lambda x: x + x + 1.0,
}
# Degrees above which Hermite polynomials are nan.
HERMITE_LIMIT = {dtypes.float32: 128, dtypes.float64: 512}
# Degrees above which Chebyshev polynomials are computed from the angle.
ANGLE_ABOVE = {"t": 6, "u": 8, "v": 8, "w": 8}
SHIFTED_ANGLE_ABOVE = {"t": 6, "u": 6, "v": 6, "w": 4}


def recurrence(x: Tensor, degree: Tensor, first: Tensor, step: Step) -> Tensor:
    """The polynomial at x, for degrees from 2 on."""
    if not x.numel():
        return x

    def body(k: Loops, out: Value, x: Value, degree: Value, first: Value) -> None:
        point, last = k.load(x, k.problem), k.load(degree, k.problem)
        before, now = k.variable(1.0, out.dtype), k.variable(k.load(first, k.problem), out.dtype)
        done = k.variable(1, dtypes.int32)
        with k.repeat(lambda: (k.value(done) < last) & k.value(now).eq(k.value(now))):
            turn = k.value(done)
            following = k.variable(step(point, k.value(now), k.value(before), turn.cast(out.dtype)), out.dtype)
            k.set(before, k.value(now))
            k.set(now, k.value(following))
            k.set(done, turn + 1)
        k.store((out, k.problem, k.value(now)))

    return run_each("recurrence", body, zeros(tuple(x.shape), x.dtype), x, degree, first)


def degrees(n: Tensor) -> Tensor:
    """Whole numbers; what is none or does not fit counts as negative, as C converts it."""
    n = n.cast(dtypes.float64 if n.dtype == dtypes.float64 else dtypes.float32)
    fits = (n < 2.0**31) & (n > -(2.0**31))
    return fits.where(n, -1.0).trunc().cast(dtypes.int32)


def arguments(x, n, meta) -> tuple[Tensor, Tensor]:
    dtype, shape = m.widen(meta[0].tiny), meta[0].shape
    x, n = m.operands(dtype, x, n)
    return x.expand(shape).contiguous(), degrees(n).expand(shape).contiguous()


def low_degrees(n: Tensor, first: Tensor, higher: Tensor) -> Tensor:
    return (n < 0).where(0.0, n.eq(0).where(1.0, n.eq(1).where(first, higher)))


def angle_form(kind: str, y: Tensor, n: Tensor, alternating: Tensor) -> Tensor:
    """Chebyshev's polynomials inside (-1, 1)."""
    count, angle = n.cast(y.dtype), acos(y)
    if kind == "t":
        return angles.cos(count * angle)
    if kind == "u":
        sine, turned = angles.sin(angle), (count + 1.0) * angle
        return sine.eq(0).where((count + 1.0) * angles.cos(turned) / y, angles.sin(turned) / sine)
    turned, half = (count + 0.5) * angle, angle * 0.5
    if kind == "v":
        return angles.sin(half).eq(1).where(alternating * (2.0 * count + 1.0), angles.cos(turned) / angles.cos(half))
    return (
        angles.cos(half)
        .eq(1)
        .where((y > 0).where(2.0 * count + 1.0, alternating), angles.sin(turned) / angles.sin(half))
    )


def edge_values(kind: str, n: Tensor, alternating: Tensor, dtype) -> tuple[Tensor, Tensor]:
    """At 1 and at -1."""
    count = n.cast(dtype)
    return {
        "t": (count * 0.0 + 1.0, alternating),
        "u": (count + 1.0, alternating * (count + 1.0)),
        "v": (count * 0.0 + 1.0, alternating * (2.0 * count + 1.0)),
        "w": (2.0 * count + 1.0, alternating),
    }[kind]


def chebyshev(kind: str, shifted: bool):
    def compute(x, n, *, meta):
        x, n = arguments(x, n, meta)
        y = (x + x - 1.0).contiguous() if shifted else x
        alternating = (n % 2).eq(0).where(1.0, -1.0).cast(y.dtype)
        by_angle = (n > (SHIFTED_ANGLE_ABOVE if shifted else ANGLE_ABOVE)[kind]) & (m.absolute(y) < 1.0)
        first = FIRST[kind](y)
        stepped = recurrence(y, by_angle.where(0, n), first, chebyshev_step)
        value = by_angle.where(angle_form(kind, y, n, alternating), low_degrees(n, first, stepped))
        at_one, at_minus_one = edge_values(kind, n, alternating, y.dtype)
        lower = x.eq(0) if shifted else x.eq(-1)
        return (n < 0).where(0.0, x.eq(1).where(at_one, lower.where(at_minus_one, value)))

    return compute


def plain(name: str):
    def compute(x, n, *, meta):
        x, n = arguments(x, n, meta)
        first = FIRST[name](x)
        limit = HERMITE_LIMIT[x.dtype] if name.startswith("hermite") else None
        steps = n if limit is None else (n > limit).where(0, n)
        value = low_degrees(n, first, recurrence(x, steps, first, STEPS[name]))
        if limit is not None:
            return (n > limit).where(m.NAN, value)
        if name == "legendre_polynomial_p":
            alternating = (n % 2).eq(0).where(1.0, -1.0).cast(x.dtype)
            value = (n < 0).where(0.0, x.eq(1).where(1.0, x.eq(-1).where(alternating, value)))
        return value

    return compute


POLYNOMIALS = {name: plain(name) for name in STEPS}
for _kind in "tuvw":
    POLYNOMIALS[f"chebyshev_polynomial_{_kind}"] = chebyshev(_kind, shifted=False)
    POLYNOMIALS[f"shifted_chebyshev_polynomial_{_kind}"] = chebyshev(_kind, shifted=True)
for _name, _compute in POLYNOMIALS.items():
    _packet = getattr(aten, f"special_{_name}")
    lowers(_packet.default, _packet.x_scalar, _packet.n_scalar)(_compute)
