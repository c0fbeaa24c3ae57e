"""A fluid shears (lattice Boltzmann, nine velocities): particles collide in each cell, then stream to the next."""

import torch

VELOCITIES = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
WEIGHTS = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4


def equilibrium(density: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    speed = 1.5 * (x * x + y * y)
    along = [3.0 * (cx * x + cy * y) for cx, cy in VELOCITIES]
    return torch.stack([w * density * (1 + a + 0.5 * a * a - speed) for w, a in zip(WEIGHTS, along, strict=True)])


def simulate(device: str, size: int = 128, steps: int = 50) -> torch.Tensor:
    rows = torch.arange(size, device=device) / size
    x = 0.1 * torch.sin(2 * torch.pi * rows)[:, None].expand(size, size)
    f = equilibrium(torch.ones(size, size, device=device), x, 0.02 * torch.cos(2 * torch.pi * rows)[None] + 0 * x)
    for _ in range(steps):
        density = f.sum(0)
        x = (f[1] + f[5] + f[8] - f[3] - f[6] - f[7]) / density
        y = (f[2] + f[5] + f[6] - f[4] - f[7] - f[8]) / density
        f = f + 0.8 * (equilibrium(density, x, y) - f)
        f = torch.stack([f[i].roll(VELOCITIES[i], (1, 0)) for i in range(9)])
    return torch.stack([x, y])


if __name__ == "__main__":
    print(simulate("tiny")[0, ::16, ::16].cpu())
