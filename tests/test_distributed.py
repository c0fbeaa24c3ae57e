"""torch.distributed with gloo: real processes, started by torchrun; what they run and compare is in tests/ranks.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

from tests.differential import ON_TINY

pytestmark = [
    pytest.mark.skipif(not ON_TINY, reason="about the device alone"),
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this PyTorch has no gloo"),
]
ROOT = Path(__file__).parent.parent


def torchrun(processes: int, *programs: str, compile: str = "never") -> None:
    """Programs compare values, which compiling changes nothing of, unless they count."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*command, "-m", "tests.ranks", *programs],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_TINY_COMPILE": compile},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    for noise in ("Overriding a previously registered kernel", "Time stats are currently only collected"):
        assert noise not in done.stderr


def test_two_processes():
    torchrun(2, "collectives", "ddp", "fsdp", "dtensor", "checkpoint")


def test_four_processes():
    torchrun(4, "collectives")


def test_steps_of_data_parallel_training_compile_no_more_after_the_third():
    torchrun(2, "steady", compile="always")


def test_a_group_that_names_no_backend():
    torchrun(2, "default_group")
