"""torch.distributed with gloo: real processes, started by torchrun; what they run and compare is in tests/ranks.py."""

from __future__ import annotations

import pytest
import torch.distributed
import torch.distributed.rpc

from tests.differential import ON_TINY
from tests.processes import torchrun

pytestmark = [
    pytest.mark.skipif(not ON_TINY, reason="about the device alone"),
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this PyTorch has no gloo"),
]
PROGRAMS = ("-m", "tests.ranks")


WHAT = {
    "every collective and point to point": "collectives",
    "DistributedDataParallel, with buckets, no_sync and unused parameters": "ddp",
    "fully_shard": "fsdp",
    "DTensor and tensor parallel": "dtensor",
    "torch.distributed.checkpoint": "checkpoint",
}


@pytest.mark.parametrize("what", WHAT)
def test_two_processes(what):
    torchrun(2, *PROGRAMS, WHAT[what])


def test_collectives_of_four_processes():
    torchrun(4, *PROGRAMS, "collectives")


@pytest.mark.skipif(not torch.distributed.rpc.is_available(), reason="this PyTorch has no rpc")
def test_rpc_is_refused():
    """TensorPipe RPC backend only supports CPU tensors by default"""
    torchrun(2, *PROGRAMS, "rpc")


def test_steps_of_data_parallel_training_compile_no_more_after_the_third():
    torchrun(2, *PROGRAMS, "steady", compile="always")


def test_a_group_that_names_no_backend():
    torchrun(2, *PROGRAMS, "default_group")
