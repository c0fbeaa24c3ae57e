"""What a process holds does not grow with the number of shapes it has seen: by counts of mappings and bytes."""

import gc
from pathlib import Path

import pytest
import torch

from tests.differential import DEVICE, ON_TINY
from torch_tinygrad import _C
from torch_tinygrad.choice import is_host

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


def expressions() -> int:
    """How many expressions of tinygrad's are alive: kernels and programs are made of them."""
    gc.collect()
    return sum(type(o).__name__ == "UOp" for o in gc.get_objects())


def test_programs_that_are_evicted_leave_nothing(monkeypatch):
    from torch_tinygrad.engine import remembered

    monkeypatch.setattr(remembered, "MOST", 8)
    _C.set_program_bound(3)
    try:
        with torch.tiny.compile_mode("always"):
            for size in range(500, 506):
                work(size)
            before, alive, allocated = mappings(), expressions(), torch.tiny.memory_allocated()
            for size in range(600, 612):
                work(size)
            assert mappings() - before <= 4 or not is_host()  # pocl keeps a kernel's library in memory for good
            assert expressions() - alive <= 200  # what the last few have
            assert torch.tiny.memory_allocated() == allocated
    finally:
        _C.set_program_bound(1024)
