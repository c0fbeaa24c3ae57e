"""Sizes are inputs: traces that differ in sizes alone share one program, and every size gives the CPU's values.

Counts are of compiles in mode `always`: the first size is compiled as it is, the second makes the program for many."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_tinygrad

pytestmark = pytest.mark.skipif(
    not torch_tinygrad.choice.is_host(), reason="programs for many sizes are of devices that share the host's memory"
)


@pytest.fixture(autouse=True)
def _always(tmp_path):
    torch.tiny.synchronize()
    torch_tinygrad._C.clear_programs()
    before = torch.tiny.vary_sizes(True)
    with torch.tiny.compile_mode("always"):
        yield
        torch.tiny.synchronize()
    torch.tiny.vary_sizes(before)


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


def test_a_sum_of_any_length():
    def run(n, device):
        x = values(n, device=device)
        return [(x * 2 + 1).exp().sum(), x.mean(), (x - x.mean()).square().sum() / (n - 1)]

    counts = compiles(run, [40, 57, 33, 64, 128, 7, 100, 255, 31])
    assert sum(counts[:2]) <= 6 and counts[2:] == [0] * 7


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat([x, x[:, :3]], 1),
        lambda x: F.pad(x, (2, 5)),
        lambda x: x.flip(1) + x.roll(2, 1),
        lambda x: x.softmax(1) @ x.t(),
        lambda x: F.layer_norm(x, x.shape[1:]),
        lambda x: x.tril() + torch.arange(x.shape[1], device=x.device),
        lambda x: x.max(1).values - x.min(1).values,
        lambda x: x.var(1, correction=1) + x.std(0).sum(),
        lambda x: x.argmax(1) + (x > 0).sum(1),
        lambda x: x[:, x.shape[1] // x.shape[1] :] - x[:, :-1],
        lambda x: x.t().contiguous().view(-1)[: 2 * x.shape[1]],
        lambda x: F.gelu(x.view(2, 3, -1).transpose(0, 2)).reshape(-1, 2),
        lambda x: torch.where(x > 0, x, x * 0.1).norm(dim=1),
        lambda x: F.one_hot((x[0] > 0).long(), 2).sum(0),
        lambda x: torch.einsum("ij,kj->ik", x, x) / x.shape[1],
    ],
)
def test_operators_at_any_size(function):
    def run(n, device):
        return [function(values(6, n, device=device))]

    counts = compiles(run, [37, 52, 48, 64, 19, 100, 33])
    assert counts[2:] == [0] * 5, torch.tiny.stats()["not_variable"]


@pytest.mark.parametrize("function", [lambda x: x.cumsum(1), lambda x: x.sort(1).values, lambda x: x.median(1).values])
def test_algorithms_whose_steps_depend_on_the_size_are_compiled_for_ranges_of_it(function):
    """Scans and sorts take as many passes as the size has digits."""

    def run(n, device):
        return [function(values(6, n, device=device))]

    compiles(run, [37, 52, 48, 64, 19, 100])


def test_writes_through_views():
    def run(n, device):
        x = values(4, n, device=device)
        first, last = x[:, 0], x[:, -1]
        x[:, 1:] += x[:, :-1].clone()
        x[1:3, 2:-2] = 7.0
        first.mul_(3)
        x.t()[-1] = last + 1
        return [x, first, last, x.diagonal().clone()]

    counts = compiles(run, [40, 33, 64, 25, 90])
    assert counts[2:] == [0] * 3, torch.tiny.stats()["not_variable"]


def test_a_constant_place_met_at_some_sizes_only():
    """Rows begin at multiples of n: whether one does at element 64 depends on n, and on nothing that primes show."""

    def run(n, device):
        x = values(8, n, device=device)
        first = x[:, 0]
        x.view(-1)[64] = 100.0
        return [first.clone(), x]

    compiles(run, [37, 53, 64, 32, 16, 31, 65, 22])


def test_two_sizes_that_vary_on_their_own():
    def run(size, device):
        batch, length = size
        x = values(batch, length, 16, device=device)
        weight = values(16, 24, device=device)
        return [F.relu(x @ weight).sum(1).softmax(-1), x.flatten(0, 1).sum(0)]

    counts = compiles(run, [(8, 40), (6, 57), (9, 33), (16, 16), (7, 128), (12, 12)])
    assert counts[2:] == [0] * 4, torch.tiny.stats()["not_variable"]


def test_a_growing_cache():
    def run(steps, device):
        weight = values(8, 8, device=device)
        cache, out = values(2, 5, 8, device=device), []
        for _ in range(steps):
            query = cache[:, -1:] @ weight
            scores = (query @ cache.transpose(1, 2)).softmax(-1)
            out.append((scores @ cache).cpu())
            cache = torch.cat([cache, query], 1)
        return [*out, cache]

    (count,) = compiles(run, [40])
    assert count <= 4


def test_masks_that_select_another_count_each_time():
    x = values(4000, device="cpu")
    mine = x.to("tiny")
    torch.tiny.reset_stats()
    for i in range(60):
        t = -1.5 + 0.05 * i
        torch.testing.assert_close((mine[mine > t] * 2).sum().cpu(), (x[x > t] * 2).sum(), rtol=1e-5, atol=1e-4)
    assert torch.tiny.stats()["compiles"] <= 6


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


def same_losses(make, batch, sizes, most):
    """Trains on both devices with batches of these sizes; after two of them there is nothing left to compile."""
    on_cpu, on_tiny = trained(make, batch, "cpu"), trained(make, batch, "tiny")
    first = sizes[0]
    assert on_tiny(first) == pytest.approx(on_cpu(first), rel=1e-4)  # makes the optimizer's state
    torch.tiny.reset_stats()
    for size in sizes:
        assert on_tiny(size) == pytest.approx(on_cpu(size), rel=1e-3), size
    assert torch.tiny.stats()["compiles"] <= most, torch.tiny.stats()["not_variable"]


def test_a_transformer_trains_with_any_length():
    def batch(n):
        tokens = torch.randint(0, 50, (4, n), generator=torch.Generator().manual_seed(n))
        return tokens, tokens.roll(1, 1)

    same_losses(Transformer, batch, [20, 33, 25, 48, 17, 40, 31, 64, 12], most=3)


def test_a_network_with_batch_norm_trains_with_any_batch():
    def make():
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * 16, 5),
        )

    def batch(n):
        generator = torch.Generator().manual_seed(n)
        return torch.randn(n, 1, 8, 8, generator=generator), torch.randint(0, 5, (n,), generator=generator)

    same_losses(make, batch, [16, 24, 13, 32, 9, 20], most=3)


def test_a_size_that_repeats_is_found_as_it_is():
    def run(n, device):
        return [values(n, 4, device=device).softmax(0).sum(1)]

    compiles(run, [30, 41, 52])
    torch.tiny.reset_stats()
    run(52, "tiny")[0].cpu()
    stats = torch.tiny.stats()
    assert stats["compiles"] == 0 and stats["replays"] >= 1
