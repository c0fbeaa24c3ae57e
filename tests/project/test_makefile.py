"""Targets of the Makefile that are run seldom: the commands they would run."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="without make")
@pytest.mark.parametrize("given", [[], ["TORCH=torch==2.15.0"]])
def test_a_wheel_is_made_for_a_version(given):
    """Not for a requirement, which `TORCH` is."""
    done = subprocess.run(["make", "-n", "wheel", *given], cwd=ROOT, capture_output=True, text=True, check=True)
    version = given[0].rpartition("=")[2] if given else "2.13.0"
    assert f"--torch {version} " in done.stdout and "torch==" not in done.stdout
