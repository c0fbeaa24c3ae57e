"""Tests of programs for many sizes begin without programs, and compile at first sight unless they say otherwise."""

import pytest
import torch

import torch_tinygrad


@pytest.fixture(autouse=True)
def compiled_at_first_sight():
    if not torch_tinygrad.choice.is_host():
        pytest.skip("programs for many sizes are of devices that share the host's memory")
    torch.tiny.synchronize()
    torch_tinygrad._C.clear_programs()
    before = torch.tiny.vary_sizes(True)
    with torch.tiny.compile_mode("always"):
        yield
        torch.tiny.synchronize()
    torch.tiny.vary_sizes(before)
