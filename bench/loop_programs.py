"""Plain programs of science whose loops write through slices: each takes a device, a size and a number of steps."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def drawn(device: str, *size: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(seed)).to(device)


def heat(device: str, size: int, steps: int) -> torch.Tensor:
    u = drawn(device, size, size)
    for _ in range(steps):
        u[1:-1, 1:-1] += 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    return u


def life_step(alive: torch.Tensor) -> torch.Tensor:
    near = sum(alive.roll((r, s), (0, 1)).int() for r in (-1, 0, 1) for s in (-1, 0, 1) if r or s)
    return (near == 3) | (alive & (near == 2))


def life(device: str, size: int, steps: int) -> torch.Tensor:
    alive = drawn(device, size, size) < 0.4
    for _ in range(steps):
        alive = life_step(alive)
    return alive


def life_by_conv2d(device: str, size: int, steps: int) -> torch.Tensor:
    alive = (drawn(device, 1, 1, size, size) < 0.4).float()
    around = torch.ones(1, 1, 3, 3)
    around[0, 0, 1, 1] = 0
    around = around.to(device)
    for _ in range(steps):
        near = F.conv2d(alive, around, padding=1)
        alive = ((near == 3) | ((alive == 1) & (near == 2))).float()
    return alive


def heat_and_life(device: str, size: int, steps: int) -> torch.Tensor:
    u, alive = drawn(device, size, size), drawn(device, size, size, seed=1) < 0.4
    for _ in range(steps):
        u[1:-1, 1:-1] += 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
        alive = life_step(alive)
        u += 0.01 * alive
    return u


def heat_1d(device: str, size: int, steps: int) -> torch.Tensor:
    u = drawn(device, size)
    for _ in range(steps):
        u[1:-1] += 0.2 * (u[2:] + u[:-2] - 2 * u[1:-1])
    return u


def fdtd(device: str, size: int, steps: int) -> torch.Tensor:
    e, h = drawn(device, size), torch.zeros(size - 1, device=device)
    for _ in range(steps):
        h += 0.5 * (e[1:] - e[:-1])
        e[1:-1] += 0.5 * (h[1:] - h[:-1])
    return torch.cat([e, h])


def knapsack(device: str, size: int, steps: int) -> torch.Tensor:
    best = torch.zeros(size, device=device)
    for i in range(steps):
        w, v = 3 + i * 7 % 23, 1 + i * 5 % 17
        best[w:] = torch.maximum(best[w:], best[:-w] + v)
    return best


def floyd_warshall(device: str, size: int, steps: int) -> torch.Tensor:
    w = drawn(device, size, size) + 0.1
    for k in range(min(size, steps)):
        w = torch.minimum(w, w[:, k : k + 1] + w[k : k + 1])
    return w


def mixed_chain(device: str, size: int, steps: int) -> torch.Tensor:
    x = drawn(device, size)
    kinds = [
        lambda x: x.sin(), lambda x: x.flip(0), lambda x: x.roll(1), lambda x: (x + x.sum()) * 0.1,
        lambda x: x * 0.9 + x.roll(2),
        lambda x: (x - x.mean()).tanh(), lambda x: torch.maximum(x, x.flip(0)), lambda x: x.cumsum(0) * 0.2,
    ]  # fmt: skip
    chosen = torch.randint(len(kinds), (steps,), generator=torch.Generator().manual_seed(3)).tolist()
    for kind in chosen:
        x = kinds[kind](x)
    return x


def erosions(device: str, size: int, steps: int) -> torch.Tensor:
    mask = drawn(device, size, size) > 0.1
    for i in range(steps):
        p = F.pad(mask, (1, 1, 1, 1), value=i % 2 == 0)
        near = [p[1:-1, 1:-1], p[:-2, 1:-1], p[2:, 1:-1], p[1:-1, :-2], p[1:-1, 2:]]
        mask = near[0]
        for other in near[1:]:
            mask = mask & other if i % 2 == 0 else mask | other
    return mask


def lms(device: str, size: int, steps: int) -> torch.Tensor:
    signal, wanted, taps = drawn(device, steps + size), drawn(device, steps, seed=1), torch.zeros(size, device=device)
    for i in range(steps):
        x = signal[i : i + size]
        taps += 0.05 * (wanted[i] - taps @ x) * x
    return taps


def gram_schmidt(device: str, size: int, steps: int) -> torch.Tensor:
    q = drawn(device, size, size) + torch.eye(size).to(device)
    for i in range(min(size, steps)):
        for j in range(i):
            q[i] -= (q[i] @ q[j]) * q[j]
        q[i] /= q[i].norm()
    return q


def prefix_maxima(device: str, size: int, steps: int) -> torch.Tensor:
    x = drawn(device, size)
    for i in range(steps):
        shift = 1 << i
        x = torch.cat([x[:shift], torch.maximum(x[shift:], x[:-shift])])
    return x


def edit_distance(device: str, size: int, steps: int, by_columns: bool = False) -> torch.Tensor:
    table = torch.zeros(size + 1, size + 1, device=device)
    table[0] = table[:, 0] = torch.arange(size + 1.0)
    cost = ((drawn(device, size, 1) > 0.5) != (drawn(device, size, seed=1) > 0.5)).float()
    for outer in range(1, size + 1):
        for inner in range(1, size + 1):
            i, j = (inner, outer) if by_columns else (outer, inner)
            near = torch.minimum(table[i - 1, j], table[i, j - 1]) + 1
            table[i, j] = torch.minimum(near, table[i - 1, j - 1] + cost[i - 1, j - 1])
    return table


def edit_distance_by_columns(device: str, size: int, steps: int) -> torch.Tensor:
    return edit_distance(device, size, steps, by_columns=True)


def dtw(device: str, size: int, steps: int) -> torch.Tensor:
    a, b = drawn(device, size), drawn(device, size, seed=1)
    table = torch.full((size + 1, size + 1), float("inf"), device=device)
    table[0, 0] = 0
    for i in range(size):
        for j in range(size):
            table[i + 1, j + 1] = (a[i] - b[j]).abs() + torch.stack(
                [table[i, j + 1], table[i + 1, j], table[i, j]]
            ).min()
    return table


def needleman_wunsch(device: str, size: int, steps: int) -> torch.Tensor:
    score = torch.zeros(size + 1, size + 1, dtype=torch.int64, device=device)
    score[0] = score[:, 0] = -torch.arange(size + 1)
    same = torch.where(drawn(device, size, 1) > 0.5, 1, -1) * torch.where(drawn(device, size, seed=1) > 0.5, 1, -1)
    for i in range(1, size + 1):
        for j in range(1, size + 1):
            gap = torch.maximum(score[i - 1, j] - 1, score[i, j - 1] - 1)
            score[i, j] = torch.maximum(gap, score[i - 1, j - 1] + same[i - 1, j - 1])
    return score


def butterflies(device: str, size: int, steps: int) -> torch.Tensor:
    z = torch.complex(drawn(device, size), drawn(device, size, seed=1))
    turn = torch.polar(torch.ones(size // 2), torch.arange(size // 2) / size).to(device)
    for _ in range(steps):
        a, b = z[: size // 2], z[size // 2 :]
        z = torch.stack([a + b, (a - b) * turn], 1).reshape(-1) * 0.7
    return torch.view_as_real(z)


def suppression(device: str, size: int, steps: int) -> torch.Tensor:
    over, keep = drawn(device, size, size) > 0.97, torch.ones(size, dtype=torch.bool, device=device)
    for i in range(min(size, steps)):
        keep[i + 1 :] &= ~(over[i, i + 1 :] & keep[i])
    return keep


def forward_substitution(device: str, size: int, steps: int) -> torch.Tensor:
    m, b = drawn(device, size, size) / size + torch.eye(size).to(device), drawn(device, size, seed=1)
    x = torch.zeros(size, device=device)
    for i in range(min(size, steps)):
        x[i] = (b[i] - m[i, :i] @ x[:i]) / m[i, i]
    return x


def lu(device: str, size: int, steps: int) -> torch.Tensor:
    a = drawn(device, size, size) + size * torch.eye(size).to(device)
    for k in range(min(size, steps)):
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= a[k + 1 :, k, None] * a[k, None, k + 1 :]
    return a


def householder(device: str, size: int, steps: int) -> torch.Tensor:
    a = drawn(device, size, size)
    for k in range(min(size, steps) - 1):
        v = a[k:, k].clone()
        v[0] += torch.where(v[0] < 0, -1.0, 1.0) * v.norm()
        v /= v.norm()
        a[k:, k:] -= 2 * v[:, None] * (v @ a[k:, k:])
    return a


def triangular_fill(device: str, size: int, steps: int) -> torch.Tensor:
    m, v = torch.zeros(size, size, device=device), drawn(device, size)
    for i in range(1, min(size, steps)):
        m[i, :i] = v[:i] * i + m[i - 1, :i]
    return m


def viterbi(device: str, size: int, steps: int) -> torch.Tensor:
    moves, seen, score = drawn(device, size, size), drawn(device, steps, size, seed=1), torch.zeros(size, device=device)
    back = torch.zeros(steps, size, dtype=torch.int64, device=device)
    for t in range(steps):
        best = (score[:, None] + moves).max(0)
        score, back[t] = best.values + seen[t], best.indices
    return score + back.sum()


def verlet(device: str, size: int, steps: int) -> torch.Tensor:
    now = torch.stack([torch.arange(size) * 1.0, torch.zeros(size)], 1).to(device)
    before = now.clone()
    for _ in range(steps):
        now, before = now + 0.99 * (now - before) - 0.001, now
        apart = now[1:] - now[:-1]
        pull = 0.5 * apart * (1 - 1 / apart.norm(dim=1, keepdim=True))
        now[:-1] += pull
        now[1:] -= pull
        now[0] = 0
    return now


def ctc(device: str, size: int, steps: int) -> torch.Tensor:
    """The forward pass of CTC by hand, cell by cell."""
    chances = drawn(device, steps, size).log_softmax(1)
    alpha = torch.full((steps, size), -1e9, device=device)
    alpha[0, 0] = chances[0, 0]
    for t in range(1, steps):
        for s in range(size):
            came = torch.logaddexp(alpha[t - 1, s], alpha[t - 1, s - 1]) if s else alpha[t - 1, s]
            alpha[t, s] = came + chances[t, s]
    return alpha


# What each is run at: size and steps.
PROGRAMS = {
    heat: [(256, 4), (256, 20), (256, 200)],
    life: [(256, 4), (256, 20), (256, 200)],
    life_by_conv2d: [(128, 20), (128, 200)],
    heat_and_life: [(256, 20)],
    heat_1d: [(1000, 10), (1000, 100)],
    fdtd: [(1000, 10), (1000, 100)],
    knapsack: [(1000, 20), (1000, 100)],
    floyd_warshall: [(20, 20), (100, 100)],
    mixed_chain: [(8, 300), (8, 5000)],
    erosions: [(192, 6)],
    lms: [(16, 20), (16, 400)],
    gram_schmidt: [(16, 16), (48, 48)],
    prefix_maxima: [(4096, 12)],
    edit_distance: [(n, n) for n in (8, 12, 24, 33, 64)],
    edit_distance_by_columns: [(n, n) for n in (12, 33)],
    dtw: [(n, n) for n in (8, 12, 24, 33, 64)],
    needleman_wunsch: [(n, n) for n in (8, 12, 24, 33, 64)],
    ctc: [(12, 12), (33, 40)],
    butterflies: [(256, 8), (256, 40)],
    suppression: [(20, 20), (200, 200)],
    forward_substitution: [(20, 20), (100, 100)],
    lu: [(16, 16), (64, 64)],
    householder: [(12, 12), (48, 48)],
    triangular_fill: [(20, 20), (100, 100)],
    viterbi: [(16, 10), (16, 100)],
    verlet: [(64, 10), (64, 100)],
}
