"""How far functions are from correct results, in units of the last place; mpmath says what is correct, not the CPU.

`python -m tests.accuracy [names] [--count N] [--dtype float64] [--way compiled]` prints a table: function, dtype, way,
the greatest error, and where it is. Compiled results must be within the bound that stands at the function in
`tests/exact_functions.py`; what runs directly is as exact as PyTorch's own kernels, and is shown beside it."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable

import mpmath
import torch

DIGITS = {torch.float32: 24, torch.float64: 53}
SMALLEST = {torch.float32: -149, torch.float64: -1074}
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
WAYS = {"direct": "never", "compiled": "always"}


# ---- arguments -----------------------------------------------------------------------------------------------------


def patterns(dtype: torch.dtype, count: int, seed: int = 2) -> torch.Tensor:
    """Finite numbers of random bits: huge ones, subnormals and all between."""
    generator, bits = torch.Generator().manual_seed(seed), torch.iinfo(BITS[dtype])
    drawn = torch.randint(bits.min, bits.max, (count * 2,), generator=generator, dtype=BITS[dtype]).view(dtype)
    return drawn[drawn.isfinite()][:count]


def evenly(dtype: torch.dtype, low: float, high: float, count: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low).to(dtype)


def around(dtype: torch.dtype, point: float, count: int, seed: int = 3) -> torch.Tensor:
    """A number, its neighbours, and numbers whose distances from it are spread over many powers of two."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.tensor(point, dtype=dtype)
    infinity = torch.tensor(math.inf, dtype=dtype)
    next_ones = [centre, torch.nextafter(centre, infinity), torch.nextafter(centre, -infinity)]
    size = torch.rand(count, generator=generator, dtype=torch.float64) * -DIGITS[dtype]
    signs = torch.randint(2, (count,), generator=generator) * 2 - 1
    unit = max(abs(point), torch.finfo(dtype).tiny)
    return torch.cat([torch.stack(next_ones), (point + signs * size.exp2() * unit).to(dtype)])


def chosen(dtype: torch.dtype, low: float, high: float, points: Iterable[float], count: int, seed: int = 0):
    """Numbers of [low, high]: random bits, evenly, and around points."""
    drawn = [patterns(dtype, count, 2 + seed), evenly(dtype, max(low, -30.0), min(high, 30.0), count, 1 + seed)]
    finite = [bound for bound in (low, high) if math.isfinite(bound)]
    drawn += [around(dtype, point, max(count // 10, 4), 3 + seed) for point in (*points, *finite, 0.0, 1.0, -1.0)]
    every = torch.cat(drawn)
    if low >= 0:
        every = every.abs()
    return every[(every >= low) & (every <= high) & every.isfinite()].unique()


# ---- errors --------------------------------------------------------------------------------------------------------


def ulps(result: float, exact, dtype: torch.dtype, least: float = 0.0) -> float:
    """The distance of a result from an exact value, in the spacing of floats at the exact value, or at `least` where
    that is greater."""
    if isinstance(exact, float) or not mpmath.isfinite(exact):
        exact = float(exact)
        same = result == exact or (math.isnan(result) and math.isnan(exact))
        return 0.0 if same else math.inf
    largest = mpmath.mpf(torch.finfo(dtype).max)
    half = mpmath.mpf(2) ** -(DIGITS[dtype] + 1)
    if abs(exact) >= largest * (1 + half) and result == math.copysign(math.inf, exact):
        return 0.0
    if abs(exact) >= largest * (1 + 8 * half):
        return math.inf
    if math.isinf(result):  # within two units of the last place of what overflows
        return 0.0 if abs(exact) >= largest * (1 - 4 * half) and (result > 0) == (exact > 0) else math.inf
    if math.isnan(result):
        return math.inf
    size = max(abs(exact), mpmath.mpf(least))
    exponent = SMALLEST[dtype] if size == 0 else max(mpmath.mag(size) - DIGITS[dtype], SMALLEST[dtype])
    return float(abs(mpmath.mpf(result) - exact) / mpmath.mpf(2) ** exponent)


def worst(
    function: Callable,
    exactly: Callable,
    *arguments: torch.Tensor,
    precision: int = 160,
    least: Callable = lambda *given: 0.0,
) -> tuple[float, tuple]:
    """The greatest error of `function` on the device, and where it is: the arguments, and the result."""
    ((error, place),) = worst_of_ways(function, exactly, arguments, [None], precision, least)
    return error, place


def worst_of_ways(function, exactly, arguments, ways, precision: int, least: Callable) -> list[tuple[float, tuple]]:
    """The same for several ways to compute it, the exact values computed once."""
    results = [run(function, arguments, way) for way in ways]
    found: list[tuple[float, tuple]] = [(0.0, ()) for _ in ways]
    with mpmath.workprec(precision):
        for place, given in enumerate(zip(*(a.tolist() for a in arguments), strict=True)):
            numbers = [mpmath.mpf(g) for g in given]
            exact, size = exactly(*numbers), least(*numbers)
            for i, result in enumerate(results):
                error = ulps(result[place].item(), exact, result.dtype, size)
                if error > found[i][0]:
                    found[i] = error, (*given, result[place].item())
    return found


def run(function: Callable, arguments: Iterable[torch.Tensor], way: str | None) -> torch.Tensor:
    if way is None:
        return function(*(a.to("tiny") for a in arguments)).cpu()
    with torch.tiny.compile_mode(WAYS[way]):
        return function(*(a.to("tiny") for a in arguments)).cpu()


# ---- the table -----------------------------------------------------------------------------------------------------


def main() -> int:
    from .exact_functions import FUNCTIONS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="functions; all of them")
    parser.add_argument("--count", type=int, default=200, help="arguments of each kind")
    parser.add_argument("--dtype", choices=["float32", "float64"], action="append")
    parser.add_argument("--way", choices=list(WAYS), action="append")
    given = parser.parse_args()
    ways = given.way or list(WAYS)
    beyond = 0
    print(f"{'function':34}{'dtype':9}{'way':10}{'ulp':>12}  at")
    for name in given.names or FUNCTIONS:
        function = FUNCTIONS[name]
        for dtype in (getattr(torch, d) for d in given.dtype or ["float32", "float64"]):
            arguments = function.arguments(dtype, given.count)
            found = worst_of_ways(
                function.compute, function.exactly, arguments, ways, function.precision, function.least
            )
            for way, (error, place) in zip(ways, found, strict=True):
                too_far = way == "compiled" and error > function.bound[dtype]
                beyond += too_far
                at = " ".join(f"{number:.17g}" for number in place)
                mark = f"  beyond {function.bound[dtype]:g}" if too_far else ""
                print(f"{name:34}{str(dtype)[6:]:9}{way:10}{error:12.4g}  {at}{mark}", flush=True)
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
