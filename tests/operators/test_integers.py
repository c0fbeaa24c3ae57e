"""Integers: conversions to them, wrapping, shifts."""

from __future__ import annotations

import pytest
import torch

from tests.differential import both


def test_in_place_forms_under_other_names():
    def run(device):
        x, y = torch.arange(1, 5, device=device), torch.tensor([1, 2, 1, 2], device=device)
        x <<= y
        x.pow_(y).floor_divide_(torch.tensor(3, device=device))
        x >>= y
        return x

    both(run)
    assert torch.ones(100, device="tiny").bernoulli_(0.0).sum().item() == 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_constants_without_an_integer_convert_as_on_the_cpu(value, dtype):
    both(lambda d: torch.where(torch.tensor([True, False], device=d), 1.0, torch.full((2,), value, device=d)).to(dtype))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_narrow_integers_wrap_before_they_are_used(dtype):
    def run(device):
        a, b = (torch.tensor(v, device=device).to(dtype) for v in ([5, 100, 127], [9, 3, 127]))
        return (a - b).float(), (-a).clamp_min(0), (a - b) < 3, (a * b).float(), (a + b + b).double(), (a * 3 - b) // 2

    both(run)
