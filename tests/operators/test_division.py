"""Whole numbers divided by zero, or by -1 where that leaves the type's range: an error or a value, never a trap."""

import pytest
import torch

from tests.differential import DEVICE, ON_TINY

OPERATORS = {
    "floor_divide": torch.floor_divide,
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "floor_divide_": lambda a, b: a.clone().floor_divide_(b),
    "remainder_": lambda a, b: a.clone().remainder_(b),
    "trunc_": lambda a, b: a.clone().div_(b, rounding_mode="trunc"),
    "out": lambda a, b: torch.fmod(a, b, out=torch.empty_like(a)),
    "trunc out": lambda a, b: torch.div(a, b, rounding_mode="trunc", out=torch.empty_like(a)),
}
SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)


@pytest.fixture(params=["never", "always"], autouse=True)
def mode(request):
    if not ON_TINY:
        yield request.param
        return
    with torch.tiny.compile_mode(request.param):
        yield request.param


def outcome(compute, *args):
    try:
        return compute(*args).cpu()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", OPERATORS)
def test_a_zero_among_divisors_is_refused_as_on_the_cpu_and_costs_nothing(name):
    compute = OPERATORS[name]
    for dtype in (*SIGNED, torch.uint8):
        a, zeros = torch.tensor([7, 8, 9], dtype=dtype), torch.tensor([1, 0, 2], dtype=dtype)
        wanted = [outcome(compute, a, b) for b in (zeros, zeros[1:2], zeros[1], 0, zeros[:1], zeros[::2][[0, 1, 1]])]
        assert wanted[0] == wanted[3] == "RuntimeError: ZeroDivisionError"
        a, zeros = a.to(DEVICE), zeros.to(DEVICE)
        kept = a * 2
        computed = zeros * 3  # of which nothing is known but a range
        found = [outcome(compute, a, b) for b in (zeros, zeros[1:2], zeros[1], 0, zeros[:1], zeros[::2][[0, 1, 1]])]
        for w, f in zip(wanted, found, strict=True):
            assert torch.equal(w, f) if isinstance(w, torch.Tensor) else w == f
        assert outcome(compute, a, computed) == "RuntimeError: ZeroDivisionError"
        assert a.tolist() == [7, 8, 9] and kept.tolist() == [14, 16, 18]


@pytest.mark.parametrize("name", OPERATORS)
def test_a_number_that_is_zero_after_others_were_not(name):
    compute = OPERATORS[name]
    x = torch.tensor([7, -8, 9], device=DEVICE)
    for number in (2, 3, -1, torch.tensor(5)):
        assert torch.equal(compute(x, number).cpu(), compute(x.cpu(), number))
    for number in (0, torch.tensor(0), torch.tensor(0, device=DEVICE)):
        assert outcome(compute, x, number) == "RuntimeError: ZeroDivisionError"


@pytest.mark.parametrize("name", OPERATORS)
def test_the_lowest_number_by_minus_one_wraps(name):
    """The CPU's own kernel traps for the quotient rounded towards zero."""
    compute = OPERATORS[name]
    for dtype in SIGNED:
        lowest = torch.iinfo(dtype).min
        a = torch.tensor([lowest, lowest, 7, lowest + 1], dtype=dtype)
        b = torch.tensor([-1, 2, -1, -1], dtype=dtype)
        want = compute(a.double(), b.double()).tolist()
        want[0] = 0 if "remainder" in name or name in ("fmod", "out") else lowest
        exact = [int(x) for x in want]
        if dtype is torch.int64:  # 2**63 - 1 is no double
            exact[3] = 0 if want[0] == 0 else -(lowest + 1)
        a, b = a.to(DEVICE), b.to(DEVICE)
        assert compute(a, b).tolist() == exact
        assert compute(a - 0, b - 0).tolist() == exact
        assert compute(a[:1], -1).tolist() == exact[:1]


@pytest.mark.skipif(not ON_TINY, reason="counts flushes")
def test_divisors_that_are_known_are_not_read():
    places = torch.arange(12, device=DEVICE) + 3
    width = torch.tensor([4, 5, 6], device=DEVICE)
    torch.tiny.synchronize()
    before = torch.tiny.stats()["flushes"]
    rows, columns = places // 4, places % width.repeat(4)
    other = torch.fmod(places, rows + 1)
    assert torch.tiny.stats()["flushes"] == before
    places, width = places.cpu(), width.cpu()
    assert torch.equal(rows.cpu(), places // 4) and torch.equal(columns.cpu(), places % width.repeat(4))
    assert torch.equal(other.cpu(), torch.fmod(places, places // 4 + 1))


def test_divisors_beyond_an_edge_do_not_trap():
    def compute(device):
        a, b = torch.arange(1, 13, device=device).reshape(3, 4), torch.tensor([[3, 5, -2, 7]], device=device)
        padded = torch.nn.functional.pad(a // b, (1, 2, 1, 1))
        joined = torch.cat([a % b, torch.zeros(1, 4, dtype=torch.int64, device=device), torch.fmod(a, b)])
        rolled = joined.clone()
        rolled[1:3] = a[:2] // b
        return padded.cpu(), joined.cpu(), rolled.cpu()

    for want, found in zip(compute("cpu"), compute(DEVICE), strict=True):
        assert torch.equal(want, found)


def test_what_was_never_written_may_be_zero():
    x = torch.tensor([5, 6], device=DEVICE)
    divisors = torch.empty(2, dtype=torch.int64, device=DEVICE)
    result = outcome(torch.floor_divide, x, divisors)
    if 0 in divisors.tolist():
        assert result == "RuntimeError: ZeroDivisionError"
    else:
        assert torch.equal(result, x.cpu() // divisors.cpu())
