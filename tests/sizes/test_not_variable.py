"""What is still compiled size by size. The list shrinks: who makes one of these vary takes it out."""

import pytest
import torch

from .counting import compiles, values

SIZE_BY_SIZE = {
    "log of running sums of exponentials": lambda x: x.logcumsumexp(1),
    "median of integers": lambda x: (x * 9).long().median(1).values,
    "adaptive pools": lambda x: torch.nn.functional.adaptive_avg_pool1d(x, 4),
}


@pytest.mark.parametrize("name", SIZE_BY_SIZE)
def test_it_is_counted_with_its_reason(name):
    def run(n, device):
        return [SIZE_BY_SIZE[name](values(6, n, device=device))]

    compiles(run, [80])
    before = torch.tiny.stats()["not_variable"]
    assert not before
    compiles(run, [67])
    assert torch.tiny.stats()["not_variable"], f"{name} vary: take it out of the list"
