"""Functions of one number are within 2 units in the last place of the correct result, over the whole range: huge
arguments, subnormal arguments and subnormal results included. mpmath is the oracle, not the CPU."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from tests.accuracy import evenly, spread, worst

HUGE = {torch.float32: 3.4e38, torch.float64: 1.7e308}
TINY = {torch.float32: 1e-45, torch.float64: 5e-324}
# where e**x overflows
GROWS = {torch.float32: 100.0, torch.float64: 720.0}


def everywhere(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([spread(dtype, TINY[dtype], HUGE[dtype], 120), evenly(dtype, -30.0, 30.0, 60)])


def above_zero(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([everywhere(dtype).abs(), 1.0 + spread(dtype, 1e-7, 0.4, 40)])


def growing(dtype: torch.dtype) -> torch.Tensor:
    bound = GROWS[dtype] * 1.05
    return torch.cat([spread(dtype, TINY[dtype], bound, 100), evenly(dtype, -bound, bound, 100)])


def within_one(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([spread(dtype, TINY[dtype], 0.999, 80), evenly(dtype, -1.0, 1.0, 80)]).clamp(-0.9999999, 0.9999999)


def above_minus_one(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([everywhere(dtype).abs(), within_one(dtype)])


def from_one(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([spread(dtype, 1.0, HUGE[dtype], 100).abs(), 1.0 + spread(dtype, 1e-6, 1.0, 50).abs()]).clamp(
        min=1
    )


FUNCTIONS = {
    "exp": (torch.exp, mpmath.exp, growing),
    "exp2": (torch.exp2, lambda x: mpmath.power(2, x), lambda dtype: growing(dtype) * (1 / math.log(2))),
    "expm1": (torch.expm1, mpmath.expm1, growing),
    "log": (torch.log, mpmath.log, above_zero),
    "log2": (torch.log2, lambda x: mpmath.log(x) / mpmath.log(2), above_zero),
    "log10": (torch.log10, mpmath.log10, above_zero),
    "log1p": (torch.log1p, mpmath.log1p, above_minus_one),
    "sin": (torch.sin, mpmath.sin, everywhere),
    "cos": (torch.cos, mpmath.cos, everywhere),
    "tan": (torch.tan, mpmath.tan, everywhere),
    "sinh": (torch.sinh, mpmath.sinh, growing),
    "cosh": (torch.cosh, mpmath.cosh, growing),
    "tanh": (torch.tanh, mpmath.tanh, growing),
    "sigmoid": (torch.sigmoid, lambda x: 1 / (1 + mpmath.exp(-x)), growing),
    "asin": (torch.asin, mpmath.asin, within_one),
    "acos": (torch.acos, mpmath.acos, within_one),
    "atan": (torch.atan, mpmath.atan, everywhere),
    "asinh": (torch.asinh, mpmath.asinh, everywhere),
    "acosh": (torch.acosh, mpmath.acosh, from_one),
    "atanh": (torch.atanh, mpmath.atanh, within_one),
    "sqrt": (torch.sqrt, mpmath.sqrt, above_zero),
    "rsqrt": (torch.rsqrt, lambda x: 1 / mpmath.sqrt(x), above_zero),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_is_within_two_units_of_the_last_place(name: str, dtype: torch.dtype) -> None:
    function, exactly, arguments = FUNCTIONS[name]
    # the digits of huge angles' turns
    precision = 1300 if name in ("sin", "cos", "tan") else 200
    error, place = worst(function, exactly, arguments(dtype), precision=precision)
    assert error <= 2.0, f"{name} is {error} off at {place}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_powers_are_within_two_units_of_the_last_place(dtype: torch.dtype) -> None:
    base, power = spread(dtype, 1e-30, 1e30, 150).abs(), evenly(dtype, -12.0, 12.0, 150)
    error, place = worst(torch.pow, mpmath.power, base, power)
    assert error <= 2.0, f"pow is {error} off at {place}"


def test_the_sine_of_a_famous_angle() -> None:
    assert torch.sin(torch.tensor([1e22], dtype=torch.float64, device="tiny")).item() == -0.8522008497671888


# Where their values pass zero, float64's last places are beyond what a sum of float64 can have.
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1.0), (torch.float64, 8.0)], ids=str)
def test_logarithms_of_gamma(dtype: torch.dtype, bound: float) -> None:
    arguments = torch.cat(
        [evenly(dtype, 0.01, 12.0, 150), 1.0 + spread(dtype, 1e-6, 0.4, 40), spread(dtype, 1e-30, 1e20, 60).abs()]
    )
    error, place = worst(torch.lgamma, mpmath.loggamma, arguments)
    assert error <= bound, f"lgamma is {error} off at {place}"
    if dtype is torch.float32:
        error, place = worst(torch.digamma, mpmath.digamma, arguments)
        assert error <= bound, f"digamma is {error} off at {place}"


def around_zero(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat(
        [spread(dtype, TINY[dtype], 20.0, 80), evenly(dtype, -6.0, 6.0, 60), evenly(dtype, -26.0, 26.0, 40)]
    )


def up_to_one(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([within_one(dtype), 1.0 - spread(dtype, 1e-7, 0.3, 60).abs()])


def bessel(order: int, scaled: bool = False):
    return lambda x: mpmath.besseli(order, x) * (mpmath.exp(-abs(x)) if scaled else 1)


# name → the function, the exact one, arguments, and the greatest error in float64: single precision is rounded once
RARE = {
    "erf": (torch.erf, mpmath.erf, around_zero, 2.0),
    "erfc": (torch.erfc, mpmath.erfc, around_zero, 5.0),
    "erfinv": (torch.erfinv, mpmath.erfinv, up_to_one, 5.0),
    "erfcx": (torch.special.erfcx, lambda x: mpmath.exp(x * x) * mpmath.erfc(x), lambda d: around_zero(d).abs(), 12.0),
    "i0": (torch.i0, bessel(0), around_zero, 32.0),
    "i1": (torch.special.i1, bessel(1), around_zero, 32.0),
    "i1e": (torch.special.i1e, bessel(1, scaled=True), around_zero, 32.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", RARE)
def test_rare_functions_have_their_digits(name: str, dtype: torch.dtype) -> None:
    function, exactly, arguments, bound = RARE[name]
    error, place = worst(function, exactly, arguments(dtype), precision=400)
    assert error <= (2.0 if dtype is torch.float32 else bound), f"{name} is {error} off at {place}"


def test_long_running_sums_lose_nothing() -> None:
    tenths = torch.full((10**6,), 0.1)
    found = tenths.to("tiny").cumsum(0)[-1].item()
    assert abs(found - tenths.double().sum().item()) <= 2 * abs(
        tenths.cumsum(0)[-1].item() - tenths.double().sum().item()
    )
