"""Tests of types that the hardware under test lacks end with a refusal of the type: they are skipped, and say so."""

from __future__ import annotations

import pytest

REFUSALS = ("doesn't support float64", "it does not have support for that dtype", "BFloat16 is not supported on ")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except Exception as error:
        from torch_tinygrad.engine.devices import lacking

        if lacking() and any(words in str(error) for words in REFUSALS):
            pytest.skip(f"the hardware lacks a type: {str(error).splitlines()[0][-120:]}")
        raise
