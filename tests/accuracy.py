"""How far a function's results are from correct ones, in units of the last place; mpmath says what is correct."""

from __future__ import annotations

import math

import mpmath
import torch

DIGITS = {torch.float32: 24, torch.float64: 53}
SMALLEST = {torch.float32: -149, torch.float64: -1074}


def spread(dtype: torch.dtype, low: float, high: float, count: int, seed: int = 0) -> torch.Tensor:
    """Numbers of both signs whose exponents are spread evenly between those of `low` and `high`."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.rand(count, generator=generator, dtype=torch.float64)
    exponents = exponents * (math.log2(high) - math.log2(low)) + math.log2(low)
    signs = torch.randint(2, (count,), generator=generator) * 2 - 1
    # twice, since subnormal powers of two are out of reach of one
    return ((exponents / 2).exp2() * ((exponents / 2).exp2() * signs)).to(dtype)


def evenly(dtype: torch.dtype, low: float, high: float, count: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low).to(dtype)


def ulps(result: float, exact, dtype: torch.dtype) -> float:
    """The distance of a result from an exact value, in the spacing of floats at the exact value."""
    if isinstance(exact, float) or not mpmath.isfinite(exact):
        exact = float(exact)
        same = result == exact or (math.isnan(result) and math.isnan(exact))
        return 0.0 if same else math.inf
    largest = mpmath.mpf(torch.finfo(dtype).max)
    if abs(exact) >= largest * (1 + mpmath.mpf(2) ** -(DIGITS[dtype] + 1)):
        return 0.0 if result == math.copysign(math.inf, exact) else math.inf
    if not math.isfinite(result):
        return math.inf
    exponent = SMALLEST[dtype] if exact == 0 else max(mpmath.mag(exact) - DIGITS[dtype], SMALLEST[dtype])
    return float(abs(mpmath.mpf(result) - exact) / mpmath.mpf(2) ** exponent)


def worst(function, exactly, *arguments: torch.Tensor, precision: int = 160) -> tuple[float, tuple]:
    """The greatest error of `function` on the device, and where it is."""
    results = function(*(a.to("tiny") for a in arguments)).cpu()
    found, place = 0.0, ()
    with mpmath.workprec(precision):
        for result, *given in zip(results.tolist(), *(a.tolist() for a in arguments), strict=True):
            error = ulps(result, exactly(*(mpmath.mpf(g) for g in given)), results.dtype)
            if error > found:
                found, place = error, (*given, result)
    return found, place
