"""torch.profiler sees the device: each step of a program with the operators it stands for, and each direct operator."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

import torch_tinygrad._C

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


@pytest.fixture(autouse=True)
def compiled():
    with torch.tiny.compile_mode("always"):
        yield


def on_device(profiler) -> list:
    return [e for e in profiler.events() if e.device_type == DeviceType.PrivateUse1]


def softened(x: torch.Tensor) -> torch.Tensor:
    return (x @ x).exp().sum(1)


@pytest.fixture
def x() -> torch.Tensor:
    x = torch.randn(64, 64).to("tiny")
    softened(x).cpu()
    return x


def test_every_step_of_a_program_is_shown_with_its_operators(x):
    torch.tiny.reset_stats()
    with profile(activities=BOTH) as p:
        softened(x).cpu()
    assert torch.tiny.stats()["replays"] == 1
    shown = on_device(p)
    assert len(shown) == torch.tiny.stats()["kernels"]
    named = " ".join(e.name for e in shown)
    assert "exp" in named and "sum" in named and "mm" in named
    assert all(e.time_range.elapsed_us() >= 0 for e in shown)


def test_device_time_belongs_to_the_flush_and_to_the_ranges_around_it(x):
    with profile(activities=BOTH) as p, record_function("mine"):
        softened(x).cpu()
    rows = {row.key: row for row in p.key_averages()}
    total = sum(e.time_range.elapsed_us() for e in on_device(p))
    flush = next(row for key, row in rows.items() if key.startswith("tiny::flush for "))
    assert flush.device_time_total == pytest.approx(total, abs=0.01) and total > 0
    assert rows["mine"].device_time_total == pytest.approx(total, abs=0.01)
    assert "Self TINY" in p.key_averages().table()


def test_direct_operators_are_shown_one_by_one(x):
    with torch.tiny.compile_mode("never"), profile(activities=BOTH) as p:
        softened(x).cpu()
    assert [e.name for e in on_device(p)] == ["aten::mm", "aten::exp", "aten::sum.dim_IntList"]
    # once on the host, where they were recorded: ATen's kernels behind them are not shown again
    assert sum(e.name == "aten::exp" and e.device_type == DeviceType.CPU for e in p.events()) == 1


def test_chrome_trace_holds_kernels_with_what_they_are(x, tmp_path):
    with profile(activities=BOTH) as p:
        softened(x).cpu()
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert len(kernels) == len(on_device(p))
    assert all(k["args"]["flush for"] and k["args"]["program"] == "hit" for k in kernels)
    assert any("exp" in k["args"]["step"] and "bytes" in k["args"]["step"] for k in kernels)


def test_without_the_device_asked_for_steps_are_not_timed(x):
    with profile(activities=[ProfilerActivity.CPU]) as p:
        assert not torch_tinygrad._C.watched()
        softened(x).cpu()
    assert not on_device(p)
    assert any(e.name.startswith("tiny::flush for ") for e in p.events())


def test_backward_and_two_sessions_in_turn(x):
    weight = torch.randn(64, 64, device="tiny", requires_grad=True)
    for _ in range(2):
        with profile(activities=BOTH, record_shapes=True) as p:
            (x @ weight).relu().sum().backward()
            weight.grad.cpu()
            weight.grad = None
        assert any("mm" in e.name for e in on_device(p))
    assert not torch_tinygrad._C.watched()


def test_schedule_of_steps(x):
    seen = []
    plan = torch.profiler.schedule(wait=1, warmup=1, active=2)
    with profile(activities=BOTH, schedule=plan, on_trace_ready=lambda p: seen.append(len(on_device(p)))) as p:
        for _ in range(4):
            softened(x).cpu()
            p.step()
    torch.tiny.reset_stats()
    softened(x).cpu()
    assert seen == [2 * torch.tiny.stats()["kernels"]]


def test_nothing_is_warned_of():
    code = """
import torch, warnings
warnings.simplefilter("error")
from torch.profiler import ProfilerActivity, profile
x = torch.ones(8, device="tiny")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as p:
    (x * 2).cpu()
p.key_averages().table()
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    # A PyTorch built for CUDA says without us, too, that it finds no driver; Vulkan, that there is no desktop.
    theirs = ("USDT:", "DeviceProperties.cpp", "XDG_RUNTIME_DIR")
    assert not [line for line in run.stderr.splitlines() if not any(name in line for name in theirs)], run.stderr
