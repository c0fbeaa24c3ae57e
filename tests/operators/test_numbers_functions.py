"""Functions are within 2 units in the last place of the correct result, over the whole range: huge arguments, subnormal
arguments and subnormal results included. mpmath is the oracle, not the CPU. `python -m tests.accuracy` tries more
arguments of each, and prints what it finds."""

from __future__ import annotations

import pytest
import torch

from tests.accuracy import worst_of_ways
from tests.exact_functions import FUNCTIONS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_is_within_two_units_of_the_last_place(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    given = function.arguments(dtype, 12)
    ((error, place),) = worst_of_ways(
        function.compute, function.exactly, given, ["compiled"], function.precision, function.least
    )
    assert error <= function.bound[dtype], f"{name} is {error} off at {place}"


def test_the_sine_of_a_famous_angle() -> None:
    assert torch.sin(torch.tensor([1e22], dtype=torch.float64, device="tiny")).item() == -0.8522008497671888


def test_long_running_sums_lose_nothing() -> None:
    tenths = torch.full((10**6,), 0.1)
    found = tenths.to("tiny").cumsum(0)[-1].item()
    assert abs(found - tenths.double().sum().item()) <= 2 * abs(
        tenths.cumsum(0)[-1].item() - tenths.double().sum().item()
    )
