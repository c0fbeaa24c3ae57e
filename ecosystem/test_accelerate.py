"""Hugging Face accelerate: it takes the device by itself, unless told otherwise."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

accelerate = pytest.importorskip("accelerate")
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def fresh():
    yield
    accelerate.state.AcceleratorState._reset_state(True)


def trained(accelerator) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(torch.arange(64.0).view(16, 4) / 64, batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for x in loader:
        with accelerator.accumulate(model):
            loss = model(x).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    return losses


def test_training_follows_the_cpu():
    expected = trained(accelerate.Accelerator(cpu=True))
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator()
    assert accelerator.device.type == "tiny"
    assert trained(accelerator) == pytest.approx(expected, rel=1e-4)


def test_bf16():
    accelerator = accelerate.Accelerator(mixed_precision="bf16")
    assert accelerator.device.type == "tiny"
    losses = trained(accelerator)
    accelerate.state.AcceleratorState._reset_state(True)
    assert losses == pytest.approx(trained(accelerate.Accelerator(cpu=True)), rel=5e-2)


def test_fp16_is_refused_by_the_library():
    with pytest.raises(ValueError, match="fp16 mixed precision requires a device in"):
        accelerate.Accelerator(mixed_precision="fp16")


def test_several_processes(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import accelerate, torch\n"
        "from ecosystem.test_accelerate import trained\n"
        "a = accelerate.Accelerator()\n"
        "assert a.device.type == 'tiny' and a.num_processes == 2, a.state\n"
        "losses = trained(a)\n"
        "accelerate.state.AcceleratorState._reset_state(True)\n"
        "want = trained(accelerate.Accelerator(cpu=True))\n"
        "torch.testing.assert_close(losses, want, rtol=1e-4, atol=1e-6)\n"
    )
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_device_that_is_named_by_the_environment():
    """`ACCELERATE_TORCH_DEVICE=tiny`, also in bf16."""
    program = (
        "import accelerate, torch\n"
        "a = accelerate.Accelerator(mixed_precision='bf16')\n"
        "assert a.device.type == 'tiny', a.state\n"
        "model = a.prepare(torch.nn.Linear(4, 2))\n"
        "assert model(torch.ones(2, 4, device='tiny')).isfinite().all()\n"
    )
    environment = {**os.environ, "ACCELERATE_TORCH_DEVICE": "tiny"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]


def test_weights_are_dispatched(tmp_path):
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    expected = copy.deepcopy(network)
    dispatched = accelerate.dispatch_model(network, {"": "tiny:0"}, force_hooks=True)
    torch.testing.assert_close(dispatched(torch.ones(2, 4)).cpu(), expected(torch.ones(2, 4)))
