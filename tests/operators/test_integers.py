"""Integers: conversions to them, wrapping, shifts."""

from __future__ import annotations

import math

import pytest
import torch

from tests.differential import DEVICE, both


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


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint32, torch.int16, torch.uint8])
def test_floats_without_an_integer_convert_as_on_the_cpu(dtype):
    """Where a kernel computes the float: what it loads, a driver may convert otherwise."""
    bounds = [math.nan, math.inf, 2.0**63, 1e30, 2.0**40, 3e9]
    numbers = torch.tensor(bounds + [-bound for bound in bounds] + [-(2.0**31), 2.0**31 - 128, -7.9, 255.5, 300.0])
    if not dtype.is_signed:
        numbers = numbers[~numbers.isnan() & (numbers.abs() < 2.0**31)]  # undefined in C, and not one thing on the CPU

    def program(device):
        x = numbers.to(device)
        return x.to(dtype), (x / 2).to(dtype)

    with torch.tiny.compile_mode("always"):
        both(program)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_narrow_integers_wrap_before_they_are_used(dtype):
    def run(device):
        a, b = (torch.tensor(v, device=device).to(dtype) for v in ([5, 100, 127], [9, 3, 127]))
        return (a - b).float(), (-a).clamp_min(0), (a - b) < 3, (a * b).float(), (a + b + b).double(), (a * 3 - b) // 2

    both(run)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_short_integers_wrap_before_they_are_used(dtype):
    """By what reads them in the same kernel: C computes with them as ints."""
    ends = torch.iinfo(dtype)
    numbers = torch.linspace(ends.min, ends.max, 8).to(dtype)

    def run(device):
        a, b = numbers.to(device), numbers.flip(0).to(device)
        made = (lambda: a << 1), (lambda: a + b), (lambda: a * b), (lambda: a - b), (lambda: -a)
        read = (
            torch.sum,
            torch.Tensor.int,
            (lambda x: x.view(torch.int32 if x.element_size() == 2 else torch.int16) * 1),
        )
        return [reads(makes()) for makes in made for reads in read]

    both(run)


def test_parts_of_integers_wrap_before_they_are_put_together():
    def run(device):
        whole = torch.full((1,), -3, dtype=torch.int16, device=device)
        parts = torch.tensor([4, 5], dtype=torch.uint8, device=device)
        whole.view(torch.uint8).index_put_((torch.arange(2, device=device),), parts, accumulate=True)
        return torch.where(whole > 5, whole, whole + 1)

    both(run)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.uint8])
def test_unique_values_of_unsigned_integers(dtype):
    def run(device):
        x = torch.tensor([3, 1, 3, 2, 1, 255]).to(dtype).to(device)
        return x.unique(return_inverse=True, return_counts=True), x.unique_consecutive()

    both(run)


def test_unique_values_of_complex_numbers_are_refused_as_on_the_cpu():
    for device in ("cpu", "tiny"):
        with pytest.raises(NotImplementedError, match="\"unique\" not implemented for 'ComplexFloat'"):
            torch.tensor([1j, 1j]).to(device).unique()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float32, torch.float64])
def test_whole_numbers_in_even_steps_are_cut_as_on_the_cpu(dtype):
    ranges = ((3, -7, 7), (-5, 50, 13), (0, 10, 7), (41, -33, 29), (2.9, -100.2, 50), (5, 9, 1), (0, 120, 200))
    both(lambda d: [torch.linspace(*range, dtype=dtype, device=d) for range in ranges])


@pytest.mark.parametrize("base", [10.0, 2.0, 3.0])
def test_whole_powers_in_even_steps_are_cut_as_on_the_cpu(base):
    ranges = ((0, 3, 4), (0, 10, 11), (1, 5, 9), (0, 2, 30), (3, 3, 1))
    both(lambda d: [torch.logspace(*range, base=base, dtype=torch.int64, device=d) for range in ranges])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_powers_of_integers_wrap_however_large_the_exponent(dtype):
    def run(device):
        base = torch.tensor([16, 3, 2, 7, 0, 1, 5]).to(dtype).to(device)
        exponent = torch.tensor([16, 100, 64, 127, 77, 99, 63]).to(dtype).to(device)
        return base**exponent, base**100, base**64

    with torch.tiny.compile_mode("always"):
        both(run)


def test_a_histogram_of_equal_limits_takes_the_range_of_the_data():
    with torch.tiny.compile_mode("always"):
        both(lambda d: [torch.histc(torch.tensor([1.0, 2, 2.5, 4]).to(d), 2, edge, edge) for edge in (0, 3, -1)])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8], ids=str)
def test_powers_of_a_number_take_every_bit_of_the_exponent(dtype):
    exponents = torch.tensor([0, 1, 63, 64, 300, 4097, 2**40 + 3, 2**62 + 1]).to(dtype)
    exponents = exponents.abs() if dtype.is_signed else exponents
    with torch.tiny.compile_mode("always"):
        for base in (2, 3, 7, -1, -2) if dtype.is_signed else (2, 3, 7):
            assert (base ** exponents.to(DEVICE)).tolist() == (base**exponents).tolist(), base
        if dtype.is_signed:  # a byte is refused
            bases = torch.tensor([3, 5, 2, 7]).to(dtype)
            assert (bases.to(DEVICE) ** 5001).tolist() == (bases**5001).tolist()


def test_constants_that_are_squared_again_and_again_wrap():
    def run(device):
        x, y = torch.full((3,), 3, device=device), torch.full((3,), -7, dtype=torch.int32, device=device)
        for _ in range(40):
            x, y = x * x, y * y + 5
        return x, y, torch.full((3,), 2, device=device) ** torch.arange(61, 64, device=device)

    with torch.tiny.compile_mode("always"):
        both(run)
