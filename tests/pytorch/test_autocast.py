"""`torch.autocast("tiny")`: dtypes as on other accelerators, values as on the CPU in those dtypes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def values(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_operators_run_in_the_dtypes_of_their_list(dtype):
    a, b = values(8, 16).to("tiny"), values(16, 4).to("tiny")
    with torch.autocast("tiny", dtype=dtype):
        product = a @ b
        assert product.dtype == dtype
        assert F.linear(a, b.t()).dtype == dtype
        assert (a + 1).dtype == torch.float32
        assert product.softmax(-1).dtype == torch.float32
        assert product.sum().dtype == torch.float32
        assert torch.cat([product, a[:, :4]]).dtype == torch.float32
        with torch.autocast("tiny", enabled=False):
            assert (a @ b).dtype == torch.float32
    expected = a.cpu().to(dtype) @ b.cpu().to(dtype)
    torch.testing.assert_close(product.cpu(), expected)
    assert (a @ b).dtype == torch.float32


def test_a_network_trains():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("tiny")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = values(64, 16).to("tiny"), torch.arange(64).remainder(4).to("tiny")
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("tiny", dtype=torch.bfloat16):
            outputs = model(inputs)
            loss = F.cross_entropy(outputs, labels)
        assert outputs.dtype == torch.bfloat16 and loss.dtype == torch.float32
        loss.backward()
        assert all(p.grad.dtype == torch.float32 for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_gradients_are_scaled_as_on_the_cpu():
    """A scale that grows every second step, and falls where a gradient is not finite; nothing runs on the CPU."""
    before = torch.tiny.stats()["fallbacks"]
    histories = []
    for device in ("cpu", "tiny"):
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=4.0, growth_interval=2)
        history = []
        for step in range(7):
            x = torch.full((3, 8), torch.inf if step == 4 else step + 1.0).to(device)
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.unscale_(optimizer)
            norm = model.weight.grad.norm().item()
            scaler.step(optimizer)
            scaler.update()
            history.append((scaler.get_scale(), norm, model.weight.sum().item()))
        histories.append(history)
    cpu, tiny = (torch.tensor(h) for h in histories)
    assert cpu[:, 0].unique().numel() > 2
    torch.testing.assert_close(tiny, cpu, equal_nan=True)
    assert torch.tiny.stats()["fallbacks"] == before
