"""Programs on disk: a second process compiles nothing, and nothing is run that another user could have written."""

import json
import os
import sqlite3
import subprocess
import sys

import pytest
import torch

from tests.processes import run
from torch_tinygrad.choice import is_host
from torch_tinygrad.engine import plans
from torch_tinygrad.values.steps import AtenStep, Operand

TRAINING = """
import json, torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(64, 32, bias=False).to("tiny")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(32, 64).to("tiny"), torch.randint(0, 5, (32,)).to("tiny")
losses = []
for step in range(4):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
index = torch.tensor([3, 1], device="tiny")
rows = torch.arange(12.0, device="tiny").view(4, 3)
rows[index] = rows[:2] * 2
"""
PROGRAM = (
    TRAINING
    + """
print(json.dumps({"losses": losses, "rows": rows.tolist(), **torch.tiny.stats()}))
"""
)


def outcome(folder, program: str = PROGRAM, **environment: str) -> dict:
    done = run(program, TORCH_TINY_CACHE=str(folder), **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A folder with the program's programs, and what the first process did."""
    folder = tmp_path_factory.mktemp("cache") / "programs"
    return folder, outcome(folder)


def test_second_process_compiles_nothing(filled):
    folder, first = filled
    second = outcome(folder)
    assert first["loads"] == 0 and first["compiles"] > 0
    assert second["compiles"] == 0 and second["loads"] == first["compiles"]
    assert second["losses"] == first["losses"] and second["rows"] == first["rows"]
    assert second["kernels"] == first["kernels"] and second["bytes_moved"] == first["bytes_moved"]


PARTS = """
import json, os, torch
x = torch.arange(64.0)
ours = x.to("tiny")
for at in json.loads(os.environ["PARTS"]):
    part, expected = ours[at : at + 4], x[at : at + 4]
    assert torch.equal((part * 2 + part.sum()).cpu(), expected * 2 + expected.sum()), at
print(json.dumps(torch.tiny.stats()))
"""


def test_a_loaded_program_finds_parts_that_move_where_they_are_now(tmp_path):
    folder = tmp_path / "programs"
    outcome(folder, PARTS, PARTS="[0, 4, 8]", TORCH_TINY_COMPILE="always")
    second = outcome(folder, PARTS, PARTS="[20, 40, 44]", TORCH_TINY_COMPILE="always")
    assert second["loads"] > 0


def test_folder_and_files_are_this_user_s_alone(filled):
    folder, _ = filled
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in folder.iterdir())


def test_damaged_programs_are_ignored_and_written_again(filled, tmp_path):
    folder, first = filled
    own = copied(folder, tmp_path / "programs")
    for i, file in enumerate(sorted(own.iterdir())):
        data = file.read_bytes()
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
        file.write_bytes([data[:middle], flipped, b"", data + b"\0"][i % 4])
    again = outcome(own)
    assert again["loads"] == 0 and again["compiles"] == first["compiles"] and again["losses"] == first["losses"]
    assert outcome(own)["loads"] == first["compiles"]


def copied(folder, target, folder_mode: int = 0o700, mode: int = 0o600, owner: int | None = None):
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
        (target / file.name).chmod(mode)
        if owner is not None:
            os.chown(target / file.name, owner, owner)
    target.chmod(folder_mode)
    return target


def test_what_others_can_write_is_not_run(filled, tmp_path):
    folder, first = filled
    assert outcome(copied(folder, tmp_path / "group", folder_mode=0o770))["loads"] == 0
    assert outcome(copied(folder, tmp_path / "file", mode=0o666))["loads"] == 0
    assert outcome(copied(folder, tmp_path / "control"))["loads"] == first["compiles"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_others_own_is_not_run(filled, tmp_path):
    folder, _ = filled
    assert outcome(copied(folder, tmp_path / "programs", owner=12345))["loads"] == 0


def test_links_are_not_followed(filled, tmp_path):
    folder, _ = filled
    own = tmp_path / "programs"
    own.mkdir(mode=0o700)
    for file in folder.iterdir():
        (own / file.name).symlink_to(file)
    assert outcome(own)["loads"] == 0


# With lifted numbers, a part of a buffer, and operators that run on the CPU.
ELSEWHERE = (
    TRAINING
    + """
x = torch.randn(3, 3, dtype=torch.complex64).to("tiny")
y = torch.linalg.svdvals(x[1:] @ x)
for step in range(3):
    rows.mul_(1.5 + step)
torch.manual_seed(1)
rows = [rows.tolist(), y.tolist(), torch.rand(3, device="tiny").tolist()]
print(json.dumps({"losses": losses, "rows": rows, **torch.tiny.stats()}))
"""
)


@pytest.mark.parametrize("library", ["0", "1"])
def test_programs_of_devices_with_memory_of_their_own_are_kept(tmp_path, library):
    folder = tmp_path / "programs"
    settings = {"TORCH_TINY_HOST": "0", "TORCH_TINY_LIBRARY": library}
    first, second = (outcome(folder, ELSEWHERE, **settings) for _ in range(2))
    assert first["loads"] == 0 and first["compiles"] > 0 and bool(first["fallbacks"]) == (library == "0")
    assert second["compiles"] == 0 and second["loads"] == first["compiles"]
    for same in ("losses", "rows", "kernels", "bytes_moved", "fallbacks"):
        assert second[same] == first[same], same
    if is_host():
        assert outcome(folder, ELSEWHERE)["loads"] == 0  # those of the host are others


def plan_with(*arguments) -> plans.Plan:
    """A program of one step of ATen's, with these arguments."""
    vector = Operand((2,), torch.float32, (1,), 0)
    step = AtenStep("aten::svd", arguments, ((0,), (1, 3)), (vector, vector), (None, vector), True)
    steps = [plans.Constant(0, 0), plans.Aten(step, [0, 1])]
    return plans.Plan([0], [2, 1], [4, 8], [64], [3], [], 8, [b"\0\1"], [(0, 0, 4), (1, 4, 8)], steps)


def test_what_is_written_is_read():
    plan = plan_with(None, True, 7, -0.5, float("inf"), "all", 3 - 4j, [1, [2.5]])
    assert plans.from_bytes(plans.to_bytes(plan), "CPU") == plan


def test_what_has_no_form_is_not_written():
    with pytest.raises(plans.Unwritable, match="a dtype"):
        plans.to_bytes(plan_with(torch.float32))


def test_zero_keeps_nothing(tmp_path):
    done = run(PROGRAM, TORCH_TINY_CACHE="0", XDG_CACHE_HOME=str(tmp_path), HOME=str(tmp_path))
    assert done.returncode == 0 and not (tmp_path / "torch-tinygrad").exists()


def test_processes_at_the_same_time(tmp_path):
    environment = {**os.environ, "TORCH_TINY_CACHE": str(tmp_path / "programs")}
    command = [sys.executable, "-c", PROGRAM]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (json.loads(process.communicate()[0]) for process in both)
    assert first["losses"] == second["losses"]
    third = outcome(tmp_path / "programs")
    assert third["compiles"] == 0 and third["losses"] == first["losses"]


def test_folder_is_bounded(tmp_path):
    """Of programs that together pass the bound, those used last are kept."""
    code = """
    import os, torch
    from torch_tinygrad import _C, cache
    torch.zeros(1, device="tiny").tolist()
    _C.set_disk_cache(cache.folder(), "test", 10_000)
    for size in range(2, 70):
        (torch.arange(float(size), device="tiny") * 2 + size).tolist()
    sizes = [entry.stat().st_size for entry in os.scandir(cache.folder())]
    print(len(sizes), sum(sizes))
    """
    done = run(code, TORCH_TINY_CACHE=str(tmp_path / "programs"))
    assert done.returncode == 0, done.stderr
    count, total = map(int, done.stdout.split())
    assert 0 < count < 30 and total < 20_000


SEARCHED = """
import json, torch
x = torch.arange(1.0, 65.0).reshape(8, 8)
y = (x.to("tiny") * 2).sum(0).cpu()
assert torch.equal(y, (x * 2).sum(0)), y
print(json.dumps(torch.tiny.stats()))
"""


def test_a_search_for_kernels_is_kept(tmp_path):
    """What BEAM finds stays in tinygrad's cache, and the program in ours."""
    database, programs = tmp_path / "tinygrad.db", tmp_path / "programs"

    def searched(programs: str) -> dict:
        done = run(SEARCHED, BEAM="1", CACHEDB=str(database), TORCH_TINY_CACHE=programs)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def found() -> list:
        with sqlite3.connect(database) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'beam_search%'").fetchall()
            return [row for (table,) in tables for row in connection.execute(f"SELECT * FROM '{table}'")]

    assert searched(str(programs))["compiles"] == 1
    kept = found()
    assert kept
    assert searched(str(programs))["loads"] == 1
    assert searched("0")["compiles"] == 1 and found() == kept
