"""The folder for programs may hold what others wrote: that is never read, counted or removed."""

import json
import os

import pytest

from tests.processes import run

# The first program that is kept makes room for itself.
FEW = """
import json, os, torch
from torch_tinygrad import _C, cache
torch.zeros(1, device="tiny").tolist()
_C.set_disk_cache(cache.folder(), "test", 10_000)
for size in range(2, 4):
    (torch.arange(float(size), device="tiny") * 2 + size).tolist()
print(json.dumps(torch.tiny.stats()))
"""
# What a folder of somebody else's might hold: also names like ours.
FOREIGN = {
    "thesis.tex": b"years of work",
    "0123456789abcdef0123456789abcdef": b"an object of another cache",
    "fedcba9876543210fedcba9876543210.77": b"a draft of another cache",
    "00000000000000000000000000000000": b"",
    "0123456789ABCDEF0123456789abcdef": b"torch-tinygrad program 2\n",
}
MARKER = "torch-tinygrad-cache"


def filled(folder):
    """Foreign files in the folder, older than anything that a program will write, and a check that they are left."""
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "data").mkdir()
    names = {**FOREIGN, "data/deep": b"below"}
    for name, content in names.items():
        (folder / name).write_bytes(content)
        os.utime(folder / name, (1, 1))
    (folder / "link").symlink_to(folder / "thesis.tex")

    def check():
        for name, content in names.items():
            assert (folder / name).read_bytes() == content
        assert (folder / "link").is_symlink()

    return check


def programs(folder) -> list:
    return [
        file
        for file in folder.iterdir()
        if file.is_file() and file.name not in FOREIGN and file.name != MARKER and not file.is_symlink()
    ]


def outcome(folder, code: str = FEW):
    done = run(code, TORCH_TINY_CACHE=str(folder), TORCH_TINY_COMPILE="always")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_a_folder_with_other_files_is_refused_with_one_line_and_left_alone(tmp_path):
    folder = tmp_path / "documents"
    check = filled(folder)
    stats, errors = outcome(folder)
    check()
    assert not programs(folder) and not (folder / MARKER).exists()
    assert stats["compiles"] > 1
    assert errors.count("compiled programs are not kept") == 1 and "TORCH_TINY_CACHE" in errors


def old_program(folder, name: str):
    """More than the bound, and not used for long."""
    (folder / name).write_bytes(b"torch-tinygrad program 1\n" + bytes(20_000))
    os.utime(folder / name, (1, 1))
    return folder / name


def test_files_put_into_our_folder_stay(tmp_path):
    folder = tmp_path / "programs"
    outcome(folder)
    assert (folder / MARKER).is_file() and programs(folder)
    check, old = filled(folder), old_program(folder, "ab" * 16)
    _, errors = outcome(folder, FEW.replace('"test"', '"other"'))
    check()
    assert "compiled programs" not in errors and programs(folder) and not old.exists()


@pytest.mark.parametrize("prepared", ["missing", "empty", "programs of old"])
def test_a_folder_becomes_ours(tmp_path, prepared):
    folder = tmp_path / "a" / "programs"
    if prepared != "missing":
        folder.mkdir(mode=0o700, parents=True)
    if prepared == "programs of old":
        old_program(folder, "ab" * 16)
    _, errors = outcome(folder)
    assert (folder / MARKER).is_file() and programs(folder) and "compiled programs" not in errors
    assert not (folder / ("ab" * 16)).exists()  # the least recently used goes first


def test_drafts_of_processes_that_died_go(tmp_path):
    folder = tmp_path / "programs"
    folder.mkdir(mode=0o700)
    draft = old_program(folder, "cd" * 16 + ".4711")
    outcome(folder)
    assert not draft.exists()
