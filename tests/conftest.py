"""What holds for every test: it begins with nothing pending, so that traces are what it records itself; and where the
hardware under test lacks a type, a test that ends with a refusal of the type is skipped, and says so. The longest files
come first, so that workers end together."""

from __future__ import annotations

import pytest
import torch

REFUSALS = ("doesn't support float64", "it does not have support for that dtype", "BFloat16 is not supported on ")

LONGEST = ("test_conformance", "test_rnn", "test_counts", "test_fuzz", "test_device_memory", "test_compile_service")


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


@pytest.fixture(autouse=True)
def nothing_pending():
    torch.tiny.synchronize()


@pytest.fixture
def cpu_operators(monkeypatch):
    """For tests of what the CPU computes by decision, also where `tests.devices` forbids that."""
    monkeypatch.setenv("TORCH_TINY_FALLBACK", "warn")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except Exception as error:
        from torch_tinygrad.engine.devices import lacking

        if lacking() and any(words in str(error) for words in REFUSALS):
            pytest.skip(f"the hardware lacks a type: {str(error).splitlines()[0][-120:]}")
        raise
