"""The programs of examples/ give the same on both devices, at small sizes; a second run compiles nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from tests.differential import DEVICE, Cost

FOLDER = Path(__file__).resolve().parent.parent / "examples"
# Sizes and steps that are quick.
SMALL = {
    "edit_distance": (9, 9),
    "floyd_warshall": (12, 12),
    "gray_scott": (16, 6),
    "heat": (16, 6),
    "ising": (8, 4),
    "kalman": (20, 6),
    "lattice_boltzmann": (8, 3),
    "life": (16, 6),
    "lu": (8, 7),
    "multigrid": (9, 2),
    "quantum": (4, 2),
    "wave": (16, 6),
}


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_run():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*SMALL, "demo"}


@pytest.mark.parametrize("name", SMALL)
def test_example(name):
    simulate = load(name).simulate
    reference = simulate("cpu", *SMALL[name])
    torch.testing.assert_close(simulate(DEVICE, *SMALL[name]).cpu(), reference)
    with Cost() as again:
        simulate(DEVICE, *SMALL[name]).cpu()
    again.expect(compiles=0)
