"""Sizes are inputs: traces that differ in sizes alone share one program, and every size gives the CPU's values.

Counts are of compiles in mode `always`: the first size is compiled as it is, the second makes the program for many."""

import pytest
import torch
from torch.nn import functional as F

from .counting import compiles, values


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


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.cumsum(1),
        lambda x: x.cummax(1).indices,
        lambda x: x.sort(1).values,
        lambda x: x.argsort(1),
        lambda x: x.topk(3, 1).values,
        lambda x: x.median(1).values,
        lambda x: torch.searchsorted(x[0].sort().values, x[1]),
    ],
)
def test_scans_sorts_and_searches_at_any_size(function):
    """At one size they take as many passes as it has digits; at many, what is enough for all."""

    def run(n, device):
        return [function(values(6, n, device=device))]

    counts = compiles(run, [37, 52, 64, 19, 150])
    assert counts[2:] == [0] * 3, torch.tiny.stats()["not_variable"]


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


def test_three_sizes_that_vary_on_their_own():
    def run(size, device):
        batch, length, choices = size
        x, table = values(batch, length, 8, device=device), values(choices, 8, device=device)
        return [(x @ table.t()).softmax(-1).sum(1), x.flatten(0, 1).amax(0)]

    counts = compiles(run, [(8, 40, 23), (6, 57, 30), (9, 33, 19), (16, 16, 41), (7, 60, 12)])
    assert counts[2:] == [0] * 3, torch.tiny.stats()["not_variable"]


def test_a_size_that_repeats_is_found_as_it_is():
    def run(n, device):
        return [values(n, 4, device=device).softmax(0).sum(1)]

    compiles(run, [30, 41, 52])
    torch.tiny.reset_stats()
    run(52, "tiny")[0].cpu()
    stats = torch.tiny.stats()
    assert stats["compiles"] == 0 and stats["replays"] >= 1
