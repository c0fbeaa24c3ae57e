"""Who reads a result waits for what computes it, not for the rest of its program (engine/marks.py). What is read must
be the value all the same: of a number that is ready early, of what is written last, and of what is written over."""

from __future__ import annotations

import torch

from tests.differential import DEVICE, flush, normal


def readings(device: str) -> list:
    """A program that has a number ready at once and much to do after it, six times; everything is read in between."""
    x, m = normal(256, 256, seed=1, device=device), normal(256, 256, seed=2, device=device) / 16
    total, read = torch.zeros(256, 256, device=device), []
    for step in range(6):
        first = (x * (step + 1)).sum()
        y = x
        for _ in range(12):
            y = torch.tanh(y @ m)
            total.add_(y)
        last = total.mean()
        x = x * 0.5 + y
        flush()
        read += [t.tolist() for t in (first, total[3, 5:9], last, first, x[::64, 7])]
        total[3].copy_(torch.full((256,), float(step)))
        read += [total[3].tolist(), first.tolist()]
    return read


def test_what_is_read_while_the_program_runs_is_right():
    for got, want in zip(readings(DEVICE), readings("cpu"), strict=True):
        torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-3, atol=1e-3)


def test_a_number_outlives_the_program_that_computed_it():
    x = normal(64, 64, device=DEVICE)
    losses = []
    for _ in range(5):
        losses.append((x * x).sum())
        x = x - x * 0.25
        flush()
    want = [(normal(64, 64) * 0.75**k).square().sum().item() for k in range(5)]
    torch.testing.assert_close(torch.tensor([loss.item() for loss in losses]), torch.tensor(want))
