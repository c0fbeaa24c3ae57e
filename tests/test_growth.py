"""What a process holds does not grow with the number of shapes it has seen: by counts of mappings and bytes."""

from pathlib import Path

import pytest
import torch

from .differential import DEVICE, ON_TINY

pytestmark = pytest.mark.skipif(not ON_TINY or not Path("/proc/self/maps").exists(), reason="counts mappings")


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("\n")


def work(size: int) -> float:
    x = torch.ones(size, device=DEVICE)
    w = torch.ones(size, 3, device=DEVICE)
    return ((x * 2).exp().sum() + (w.t() @ x).relu().sum()).item()


def test_shapes_that_never_come_again_leave_nothing():
    with torch.tiny.compile_mode("never"):
        for size in range(500, 900):
            work(size)
        before, allocated = mappings(), torch.tiny.memory_allocated()
        for size in range(900, 2500):
            work(size)
        assert mappings() - before <= 8
        assert torch.tiny.memory_allocated() == allocated
