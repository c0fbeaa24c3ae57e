"""A size that comes again and again may get a program of its own."""

import torch

from .counting import values

RUNS = 100  # as `kHot` in csrc/flush/flush.cpp
TURNS = 24  # of both programs


def test_a_hot_size_is_compiled_behind_and_compared():
    def run(n, device):
        x = values(6, n, device=device)
        return ((x * 2).softmax(1) @ x.t()).sum(0)

    want = {n: run(n, "cpu") for n in (40, 57)}

    def ran(n) -> None:
        torch.testing.assert_close(run(n, "tiny").cpu(), want[n])

    with torch.tiny.compile_mode("auto"):
        for n in (40, 57, 40):
            ran(n)
            assert torch.tiny.wait_for_compiles(120)
        torch.tiny.reset_stats()
        for _ in range(RUNS + 1):
            ran(57)
        assert torch.tiny.stats()["compiles"] == 0 and torch.tiny.stats()["direct"] == 0
        assert torch.tiny.wait_for_compiles(120)
        for _ in range(TURNS + RUNS + 10):
            ran(57)
        assert torch.tiny.wait_for_compiles(120)
    stats = torch.tiny.stats()
    assert stats["compiles"] == 1 and stats["direct"] == 0 and not stats["not_compiled"]
