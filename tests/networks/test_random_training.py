"""Random networks train as on the CPU, directly and mixed with what is compiled: `tests/random_training.py`."""

import pytest
import torch

from tests.random_training import check, random_lines


@pytest.fixture(autouse=True)
def sizes_vary():
    before = torch.tiny.vary_sizes(True)
    yield
    torch.tiny.vary_sizes(before)


@pytest.mark.parametrize("seed", range(30))
def test_directly(seed, monkeypatch):
    monkeypatch.setenv("TORCH_TINY_COMPILE", "never")
    check(random_lines(seed), seed)


@pytest.mark.parametrize("seed", range(3))
def test_with_some_of_it_compiled(seed, monkeypatch):
    monkeypatch.setenv("TORCH_TINY_COMPILE", "mixed")
    check(random_lines(seed), seed)
