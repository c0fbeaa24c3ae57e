"""Packaging: the report for bugs, and another torch than the one that the extension was built for."""

from __future__ import annotations

import pytest
import torch

from tests.differential import ON_TINY
from tests.installed import OTHER_TORCH
from tests.processes import run

pytestmark = pytest.mark.skipif(not ON_TINY, reason="about the device alone")


def test_the_report_has_versions_devices_compiler_and_a_check():
    done = run("import runpy; runpy.run_module('torch_tinygrad', run_name='__main__')")
    assert done.returncode == 0, done.stderr
    for word in ("torch-tinygrad", torch.__version__, "tinygrad", "python", "device", "clang", "cache"):
        assert word in done.stdout, done.stdout


def test_another_torch_is_refused():
    """there is no device 'tiny': torch-tinygrad was built for torch ..."""
    code = OTHER_TORCH.replace('pathlib.Path(torch.__path__[0]).parent / "torch_tinygrad/built_for.txt"', "NOTE")
    find = "importlib.util.find_spec('torch_tinygrad').origin"
    note = f"import importlib.util, pathlib\nNOTE = pathlib.Path({find}).parent / 'built_for.txt'\n"
    done = run(note + code)
    assert done.returncode == 0, done.stderr
