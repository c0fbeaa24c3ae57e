"""What holds for every test: it begins with nothing pending, so that traces are what it records itself; and where the
hardware under test lacks a type, a test that ends with a refusal of the type is skipped, and says so."""

from __future__ import annotations

import pytest
import torch

REFUSALS = ("doesn't support float64", "it does not have support for that dtype", "BFloat16 is not supported on ")


@pytest.fixture(autouse=True)
def nothing_pending():
    torch.tiny.synchronize()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except Exception as error:
        from torch_tinygrad.engine.devices import lacking

        if lacking() and any(words in str(error) for words in REFUSALS):
            pytest.skip(f"the hardware lacks a type: {str(error).splitlines()[0][-120:]}")
        raise
