"""Addresses of storages: unique among the living, and given to storages of any size after them."""

import random

import pytest
import torch

from tests.differential import DEVICE, ON_TINY
from tests.processes import run

pytestmark = pytest.mark.skipif(not ON_TINY, reason="the CPU has memory behind its addresses")
GIB = 1 << 30


def empty(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=DEVICE)


def fill_up(nbytes: int) -> list[torch.Tensor]:
    taken = []
    while True:
        try:
            taken.append(empty(nbytes))
        except torch.OutOfMemoryError as error:
            assert f"tiny: out of memory. Tried to allocate {nbytes} bytes" in str(error)
            return taken


def test_no_size_takes_addresses_from_others_for_good():
    for nbytes in (1 << 32, 3 << 40, 5 << 33, 1 << 45):
        taken = fill_up(nbytes)
        assert len(taken) * nbytes > 1 << 44
        assert empty(16).data_ptr() not in {t.data_ptr() for t in taken}
        del taken


def test_doubling_until_it_fails_costs_nobody_anything():
    size = 1024
    with pytest.raises(torch.OutOfMemoryError):
        while True:
            empty(size)
            size *= 2
    kept = []
    for _ in range(3):
        size = 1024
        with pytest.raises(torch.OutOfMemoryError):
            while True:
                kept.append(empty(size))
                size *= 2
        kept.clear()
    assert (torch.ones(3, device=DEVICE) + 1).tolist() == [2] * 3


def test_living_storages_never_share_addresses():
    choose = random.Random(0)
    living: list[torch.Tensor] = []
    for _ in range(3000):
        if living and choose.random() < 0.45:
            living.pop(choose.randrange(len(living)))
        else:
            living.append(empty(choose.choice((1, 700, 5000, 1 << 20, 3 << 20, GIB, 7 * GIB, 1 << 40))))
    ranges = sorted((t.data_ptr(), t.data_ptr() + t.numel()) for t in living)
    assert all(end <= begin for (_, end), (begin, _) in zip(ranges, ranges[1:], strict=False))


def test_a_process_whose_addresses_are_bounded_has_as_many_as_it_may():
    bounded = "import resource; resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30)); "
    done = run(bounded + "import torch; assert (torch.ones(3, device='tiny') + 1).tolist() == [2] * 3")
    assert done.returncode == 0, done.stderr
