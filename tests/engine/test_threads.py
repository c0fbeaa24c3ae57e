"""Kernels large enough to be shared out over threads compute what the CPU does."""

import sys

import pytest
import torch
from tinygrad.uop.ops import ProgramInfo

from tests.processes import run
from torch_tinygrad.engine.independence import Independence
from torch_tinygrad.engine.layout import ARENA, INPUT, OUTPUT, Operand, Slot

SIZE = (1024, 1024)

PROGRAMS = {
    "pointwise": lambda x, y: (x * y + 0.5).tanh().exp(),
    "another order": lambda x, y: x.t().contiguous() * 2 + y,
    "sums of rows": lambda x, y: (x * y).sum(1),
    "sums of columns": lambda x, y: (x + y).sum(0),
    "layer norm": lambda x, y: torch.nn.functional.layer_norm(x, (1024,)) + y,
    "in place": lambda x, y: x.mul_(2).add_(y),
    "part of it": lambda x, y: x[::2].copy_(y[1::2] * 3),
    "scan": lambda x, y: x.cumsum(1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_large_kernels(name):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(SIZE, generator=generator) for _ in range(2))
    inputs = [t.to("tiny") for t in (x, y)]
    torch.tiny.synchronize()
    got, want = PROGRAMS[name](*inputs), PROGRAMS[name](x, y)
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-3)
    for on_device, on_cpu in zip(inputs, (x, y), strict=True):
        torch.testing.assert_close(on_device.cpu(), on_cpu, rtol=1e-4, atol=1e-3)


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_recording_a_backward_pass_starts_no_helpers():
    """Autograd's own thread records, and asks the CPU for shapes. Helpers of OpenMP that it started would be a team too
    many for the processors: then all of them sleep between any two loops, and waking them takes longer than most."""
    done = run(
        """
        import os, torch
        from torch import nn
        count = lambda: len(os.listdir("/proc/self/task"))
        model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256)).to("tiny")
        x = torch.randn(256, 256).to("tiny")
        before = count()
        model(x).square().mean().backward()
        print(count() - before)
        """,
        OMP_NUM_THREADS="4",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1"], "more threads than autograd's own"


def test_kernels_that_need_nothing_of_each_other():
    """They run at the same time; those that follow find everything they wrote."""
    generator = torch.Generator().manual_seed(1)
    start = [torch.randn(40_000 + 16 * i, generator=generator) for i in range(24)]
    ours = [t.to("tiny") for t in start]
    reference = [t.clone() for t in start]
    for _ in range(12):
        for tensors in (ours, reference):
            torch._foreach_mul_(tensors, 0.5)
            torch._foreach_add_(tensors, 1.0)
            tops = [t.max() for t in tensors]
            for t, top in zip(tensors, reversed(tops), strict=True):
                t.sub_(top.sin())
        torch.tiny.synchronize()
    for t, want in zip(ours, reference, strict=True):
        torch.testing.assert_close(t.cpu(), want)


def kernel(*outs: int) -> ProgramInfo:
    return ProgramInfo(globals=(0, 1), outs=outs)


def operand(kind: int, number: int, offset: int = 0, nbytes: int = 64) -> Operand:
    return Operand(Slot(kind, number, offset), nbytes)


@pytest.mark.parametrize(
    ("second", "is_beside"),
    [
        ([operand(OUTPUT, 1), operand(INPUT, 1)], True),
        ([operand(OUTPUT, 1), operand(INPUT, 0)], True),  # both only read it
        ([operand(OUTPUT, 1), operand(OUTPUT, 0)], False),  # reads what the first writes
        ([operand(INPUT, 0), operand(INPUT, 1)], False),  # writes what the first reads
        ([operand(OUTPUT, 0), operand(INPUT, 1)], False),  # writes what the first writes
        ([operand(OUTPUT, 0, 64), operand(INPUT, 1)], True),  # directly behind it
        ([operand(OUTPUT, 0, 60), operand(INPUT, 1)], False),
        ([operand(ARENA, 0), operand(INPUT, 1)], True),
    ],
)
def test_what_kernels_use_says_whether_they_wait(second, is_beside):
    independence = Independence()
    assert not independence.add(kernel(0), [operand(OUTPUT, 0), operand(INPUT, 0)])
    assert independence.add(kernel(0), second) == is_beside
    independence.restart()
    assert not independence.add(kernel(0), [operand(OUTPUT, 7), operand(INPUT, 7)])
