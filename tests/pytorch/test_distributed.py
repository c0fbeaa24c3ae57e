"""torch.distributed with gloo: real processes, started by torchrun; what they run and compare is in tests/ranks.py."""

from __future__ import annotations

import pytest
import torch.distributed

from tests.differential import ON_TINY
from tests.processes import torchrun

pytestmark = [
    pytest.mark.skipif(not ON_TINY, reason="about the device alone"),
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this PyTorch has no gloo"),
]
PROGRAMS = ("-m", "tests.ranks")


def test_two_processes():
    torchrun(2, *PROGRAMS, "collectives", "ddp", "fsdp", "dtensor", "checkpoint")


def test_four_processes():
    torchrun(4, *PROGRAMS, "collectives")


def test_steps_of_data_parallel_training_compile_no_more_after_the_third():
    torchrun(2, *PROGRAMS, "steady", compile="always")


def test_a_group_that_names_no_backend():
    torchrun(2, *PROGRAMS, "default_group")
