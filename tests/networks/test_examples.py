"""The programs of examples/ give the same on both devices, at small sizes; a second run compiles nothing."""

from __future__ import annotations

import importlib.util
import zlib
from pathlib import Path

import pytest
import torch

from tests.differential import DEVICE, Cost

FOLDER = Path(__file__).resolve().parents[2] / "examples"
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
    assert {path.stem for path in FOLDER.glob("*.py")} == {*SMALL, "demo", "gallery"}


@pytest.mark.parametrize("name", SMALL)
def test_example(name):
    simulate = load(name).simulate
    reference = simulate("cpu", *SMALL[name])
    torch.testing.assert_close(simulate(DEVICE, *SMALL[name]).cpu(), reference)
    with Cost() as again:
        simulate(DEVICE, *SMALL[name]).cpu()
    again.expect(compiles=0)


def test_pictures_of_the_gallery_are_files_that_hold_them():
    gallery = load("gallery")
    for name, shown in gallery.pictures("cpu", 16, 12).items():
        file = gallery.png(shown)
        assert file.startswith(b"\x89PNG") and file.count(b"fcTL") == (len(shown) if len(shown) > 1 else 0), name
        begin = file.index(b"IDAT") + 4
        size = int.from_bytes(file[begin - 8 : begin - 4], "big")
        rows = torch.tensor([*zlib.decompress(file[begin : begin + size])], dtype=torch.uint8).reshape(32, 97)
        assert torch.equal(rows[:, 1:].reshape(32, 32, 3), shown[0]), name
