"""Programs as scientists write them, loops over slices and cells, that nothing here was made for: right at several
sizes, compiled or not."""

from __future__ import annotations

import pytest
import torch

from tests.differential import ON_TINY, both

pytestmark = pytest.mark.skipif(not ON_TINY, reason="compares the device with the CPU")


def drawn(*size, device, seed=0):
    return torch.rand(size, generator=torch.Generator().manual_seed(seed)).to(device)


def particles_in_cells(device, n):
    """Charges are put on a grid, a field is made of them, and it pushes the particles."""
    place, speed = drawn(4 * n, device=device) * n, drawn(4 * n, device=device, seed=1) - 0.5
    for _ in range(n):
        cell = place.long() % n
        charge = torch.zeros(n, device=device).index_add(0, cell, torch.ones(4 * n, device=device))
        field = (charge.roll(1) - charge.roll(-1)) * 0.01
        speed = speed * 0.99 + field[cell]
        place = (place + 0.1 * speed) % n
    return charge, speed


def sandpile(device, n):
    sand = torch.full((n, n), 6, dtype=torch.int64, device=device)
    for _ in range(n):
        topples = sand >= 4
        sand = sand - 4 * topples
        sand[1:] += topples[:-1]
        sand[:-1] += topples[1:]
        sand[:, 1:] += topples[:, :-1]
        sand[:, :-1] += topples[:, 1:]
    return sand


def red_black_relaxation(device, n):
    u, f = torch.zeros(2 * n, 2 * n, device=device), drawn(2 * n, 2 * n, device=device)
    for _ in range(n):
        for rows, columns in ((1, 1), (2, 2), (1, 2), (2, 1)):
            inner = u[rows:-1:2, columns:-1:2]
            near = u[rows - 1 : -2 : 2, columns:-1:2] + u[rows + 1 :: 2, columns:-1:2][: inner.shape[0]]
            near = near + u[rows:-1:2, columns - 1 : -2 : 2] + u[rows:-1:2, columns + 1 :: 2][:, : inner.shape[1]]
            inner += 0.3 * (near - 4 * inner + f[rows:-1:2, columns:-1:2])
    return u


def smith_waterman(device, n):
    a, b = drawn(n, device=device) > 0.5, drawn(n, device=device, seed=1) > 0.5
    gain = torch.where(a[:, None] == b[None], 2, -1)
    score = torch.zeros(n + 1, n + 1, dtype=torch.int64, device=device)
    for i in range(n):
        for j in range(n):
            best = torch.maximum(score[i, j] + gain[i, j], torch.maximum(score[i, j + 1], score[i + 1, j]) - 1)
            score[i + 1, j + 1] = best.clamp(min=0)
    return score, score.max()


def tridiagonal_steps(device, n):
    """Crank and Nicolson's scheme, each system solved by Thomas's algorithm."""
    u = drawn(n, device=device)
    for _ in range(3):
        right = u.clone()
        right[1:-1] = 0.25 * (u[2:] + u[:-2]) + 0.5 * u[1:-1]
        upper, value = torch.zeros(n, device=device), torch.zeros(n, device=device)
        upper[0], value[0] = -0.25 / 1.5, right[0] / 1.5
        for i in range(1, n):
            below = 1.5 + 0.25 * upper[i - 1]
            upper[i] = -0.25 / below
            value[i] = (right[i] + 0.25 * value[i - 1]) / below
        u = value.clone()
        for i in range(n - 2, -1, -1):
            u[i] = value[i] - upper[i] * u[i + 1]
    return u


def jacobi_rotations(device, n):
    a = drawn(n, n, device=device)
    a = a + a.t()
    for _ in range(2):
        for p in range(n - 1):
            angle = 0.5 * torch.atan2(2 * a[p, p + 1], a[p + 1, p + 1] - a[p, p])
            c, s = angle.cos(), angle.sin()
            left, right = a[:, p].clone(), a[:, p + 1].clone()
            a[:, p], a[:, p + 1] = c * left - s * right, s * left + c * right
            left, right = a[p].clone(), a[p + 1].clone()
            a[p], a[p + 1] = c * left - s * right, s * left + c * right
    return a


def metropolis(device, n):
    x, steps, chances = (
        torch.zeros(8, device=device),
        drawn(n, 8, device=device) - 0.5,
        drawn(n, 8, device=device, seed=1),
    )
    kept = torch.empty(n, 8, device=device)
    for t in range(n):
        tried = x + steps[t]
        x = torch.where(chances[t] < (x * x - tried * tried).exp(), tried, x)
        kept[t] = x
    return kept, kept.mean(0)


def reaction_front(device, n):
    u = torch.zeros(4 * n, device=device)
    u[:4] = 1
    fronts = []
    for _ in range(n):
        spread = torch.nn.functional.pad(u, (1, 1), mode="constant")
        u = u + 0.2 * (spread[2:] + spread[:-2] - 2 * u) + 0.1 * u * (1 - u)
        fronts.append((u > 0.5).sum())
    return u, torch.stack(fronts)


def viterbi(device, n):
    moves, seen = drawn(5, 5, device=device).log(), drawn(n, 5, device=device, seed=1).log()
    score, back = seen[0], torch.zeros(n, 5, dtype=torch.int64, device=device)
    for t in range(1, n):
        score, back[t] = (score[:, None] + moves).max(0)
        score = score + seen[t]
    path = torch.zeros(n, dtype=torch.int64, device=device)
    path[-1] = score.argmax()
    for t in range(n - 1, 0, -1):
        path[t - 1] = back[t, path[t]]
    return score, path


def bubble_sort(device, n):
    x = drawn(n, device=device)
    for i in range(n):
        first = i % 2
        a, b = x[first:-1:2], x[first + 1 :: 2]
        low, high = torch.minimum(a, b), torch.maximum(a, b)
        x[first:-1:2], x[first + 1 :: 2] = low, high
    return x


def rule_30(device, n):
    history = torch.zeros(n + 1, 2 * n + 1, dtype=torch.bool, device=device)
    history[0, n] = True
    for t in range(n):
        row = history[t]
        history[t + 1] = row.roll(1) ^ (row | row.roll(-1))
    return history


def moving_averages(device, n):
    x = drawn(n, 3, device=device)
    fast, slow, signal = x[0].clone(), x[0].clone(), torch.zeros(n, 3, device=device)
    for t in range(1, n):
        fast += 0.3 * (x[t] - fast)
        slow.mul_(0.9).add_(x[t], alpha=0.1)
        signal[t] = (fast > slow).float() + signal[t - 1] * 0.5
    return fast, slow, signal


PROGRAMS = [
    particles_in_cells, sandpile, red_black_relaxation, smith_waterman, tridiagonal_steps, jacobi_rotations, metropolis,
    reaction_front, viterbi, bubble_sort, rule_30, moving_averages,
]  # fmt: skip


@pytest.mark.parametrize("mode", ["auto", "always"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_is_right_at_several_sizes(program, mode):
    with torch.tiny.compile_mode(mode):
        for n in (6, 11, 20) if mode == "auto" else (6, 17):
            both(lambda device, n=n: program(device, n), schedules=("lazy",), rtol=1e-3, atol=1e-3)
