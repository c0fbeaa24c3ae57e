"""safetensors: saved from the device and loaded onto it."""

from __future__ import annotations

import pytest
import torch

safetensors = pytest.importorskip("safetensors.torch")


def test_files_go_from_and_to_the_device(tmp_path):
    tensors = {
        "weight": torch.randn(4, 3, device="tiny").t().contiguous(),
        "half": torch.randn(5, device="tiny").to(torch.bfloat16),
        "count": torch.arange(6, device="tiny"),
    }
    safetensors.save_file(tensors, tmp_path / "file.safetensors")
    for device in ("cpu", "tiny", "tiny:0"):
        loaded = safetensors.load_file(tmp_path / "file.safetensors", device=device)
        for name, value in tensors.items():
            assert loaded[name].device.type == torch.device(device).type
            assert torch.equal(loaded[name].cpu(), value.cpu())


def test_parts_are_read_onto_the_device(tmp_path):
    safetensors.save_file({"x": torch.arange(12.0).view(4, 3)}, tmp_path / "file.safetensors")
    with safetensors.safe_open(tmp_path / "file.safetensors", framework="pt", device="tiny") as file:
        part = file.get_slice("x")[1:3]
    assert part.device.type == "tiny" and part.tolist() == [[3, 4, 5], [6, 7, 8]]


def test_modules(tmp_path):
    model, other = torch.nn.Linear(3, 2).to("tiny"), torch.nn.Linear(3, 2).to("tiny")
    safetensors.save_model(model, str(tmp_path / "model.safetensors"))
    safetensors.load_model(other, str(tmp_path / "model.safetensors"), device="tiny")
    assert torch.equal(model.weight.cpu(), other.weight.cpu())
