"""What tests of programs for many sizes share: the CPU's values at every size, and how many compiles each took."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def compiles(run, sizes) -> list[int]:
    """How many compiles each size takes, with its results compared with the CPU's."""
    counts = []
    for size in sizes:
        expected = run(size, "cpu")
        torch.tiny.synchronize()
        torch.tiny.reset_stats()
        given = run(size, "tiny")
        torch.tiny.synchronize()
        counts.append(torch.tiny.stats()["compiles"])
        torch.testing.assert_close(
            [t.cpu() for t in given],
            [t.cpu() for t in expected],
            rtol=2e-5,
            atol=2e-5,
            msg=lambda m, s=size: f"size {s}: {m}",
        )
    return counts


def values(*shape: int, device: str) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(device)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.embedding, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)))


def trained(make, batch, device):
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(size):
        x, y = batch(size)
        loss = F.cross_entropy(model(x.to(device)).flatten(0, -2), y.to(device).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def same_losses(make, batch, sizes, most, before=()):
    """Trains on both devices with batches of these sizes; after two of them there is nothing left to compile."""
    on_cpu, on_tiny = trained(make, batch, "cpu"), trained(make, batch, "tiny")
    for size in before:
        assert on_tiny(size) == pytest.approx(on_cpu(size), rel=1e-4), size
    torch.tiny.reset_stats()
    for size in sizes:
        assert on_tiny(size) == pytest.approx(on_cpu(size), rel=1e-3), size
    assert torch.tiny.stats()["compiles"] <= most, torch.tiny.stats()["not_variable"]
