"""Numbers that do not fit a dtype, and probabilities that are none, get the CPU's exception: also where the same call
with another number was accepted before, and where tensors are too large to ask the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from tests.differential import DEVICE, assert_same_error, raised_by, same_error

LARGE = 1 << 20


def mask(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(x.shape, dtype=torch.bool, device=x.device)


def first(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int64).to(x.device)


# name -> a number becomes elements of x.
STORED: dict[str, Callable[[torch.Tensor, complex], object]] = {
    "fill_": lambda x, v: x.fill_(v),
    "full": lambda x, v: torch.full((3,), v, dtype=x.dtype, device=x.device),
    "full_like": lambda x, v: torch.full_like(x, v),
    "new_full": lambda x, v: x.new_full((3,), v),
    "scalar_tensor": lambda x, v: torch.scalar_tensor(v, dtype=x.dtype, device=x.device),
    "setitem": lambda x, v: x.__setitem__(0, v),
    "setitem_mask": lambda x, v: x.__setitem__(mask(x), v),
    "setitem_index": lambda x, v: x.__setitem__(first(x), v),
    "masked_fill": lambda x, v: x.masked_fill(mask(x), v),
    "masked_fill_tensor": lambda x, v: x.masked_fill_(mask(x), torch.tensor(v)),
    "index_fill": lambda x, v: x.index_fill(0, first(x), v),
    "scatter": lambda x, v: x.scatter(0, first(x), v),
    "pad": lambda x, v: F.pad(x, (1, 1), value=v),
    "clamp": lambda x, v: x.clamp(max=v),
    "clamp_": lambda x, v: x.clamp_(min=v),
    "clamp_max": lambda x, v: x.clamp_max(v),
    "add": lambda x, v: x.add(v),
    "add_alpha": lambda x, v: x.add(x, alpha=v),
    "addcmul": lambda x, v: x.addcmul(x, x, value=v),
    "where": lambda x, v: torch.where(mask(x), x, v),
    "mul_": lambda x, v: x.mul_(v),
    "eq": lambda x, v: x == v,
}
NUMBERS = (1, -1, 2.5, 300, -300, 70000, 2**40, 1e10, 1e300, math.inf, math.nan, 1j)
DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", STORED)
def test_number_is_refused_where_the_cpu_refuses_it(name, dtype):
    for number in NUMBERS:
        errors = [
            raised_by(lambda d=d, v=number: STORED[name](torch.ones(8, dtype=dtype, device=d), v))
            for d in ("cpu", DEVICE)
        ]
        assert_same_error(*errors, where=f"{name}, {dtype}, {number}")


@pytest.mark.parametrize("name", [n for n in STORED if n not in ("addcmul", "add", "mul_", "eq")])
def test_number_for_a_large_tensor(name):
    def make(device: str) -> torch.Tensor:
        return torch.ones(LARGE, dtype=torch.int16, device=device)

    STORED[name](make(DEVICE), 3)
    assert same_error(lambda x: STORED[name](x, 100_000), make)


def test_complex_number_on_the_device():
    assert same_error(
        lambda x: x.masked_fill(mask(x), torch.tensor(1j).to(x.device)), lambda d: torch.ones(2, dtype=int, device=d)
    )


# name -> (probabilities, how many are drawn, with replacement).
NO_PROBABILITIES = {
    "negative": ([1.0, -1.0], 1, False),
    "nan": ([1.0, math.nan], 1, True),
    "infinite": ([1.0, math.inf], 1, False),
    "all_zero": ([0.0, 0.0], 1, False),
    "a_row_of_zeros": ([[1.0, 2.0], [0.0, 0.0]], 1, False),
    "a_row_of_zeros_with_replacement": ([[1.0, 2.0], [0.0, 0.0]], 3, True),
    "too_many": ([1.0, 2.0], 3, False),
}


@pytest.mark.parametrize("name", NO_PROBABILITIES)
def test_multinomial_refuses_what_are_no_probabilities(name):
    weights, count, replacement = NO_PROBABILITIES[name]
    assert same_error(
        lambda p: torch.multinomial(p, count, replacement), lambda device: torch.tensor(weights, device=device)
    )
    assert same_error(
        lambda p: torch.multinomial(p * 2, count, replacement, out=torch.empty(0, dtype=int, device=p.device)),
        lambda device: torch.tensor(weights, device=device),
    )


def test_multinomial_draws_after_an_error():
    weights = torch.tensor([0.0, 1.0, 0.0], device=DEVICE)
    assert raised_by(lambda: torch.multinomial(weights * -1, 1)) is not None
    assert torch.multinomial(weights, 4, True).tolist() == [1, 1, 1, 1]
