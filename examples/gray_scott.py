"""Two chemicals react and diffuse (Gray and Scott): spots grow and divide."""

import torch


def spread(a: torch.Tensor) -> torch.Tensor:
    return a.roll(1, 0) + a.roll(-1, 0) + a.roll(1, 1) + a.roll(-1, 1) - 4 * a


def simulate(device: str, size: int = 128, steps: int = 200) -> torch.Tensor:
    u, v = torch.ones(size, size, device=device), torch.zeros(size, size, device=device)
    middle = slice(size * 3 // 8, size * 5 // 8)
    u[middle, middle], v[middle, middle] = 0.5, 0.25
    for _ in range(steps):
        reaction = u * v * v
        u = u + 0.16 * spread(u) - reaction + 0.035 * (1 - u)
        v = v + 0.08 * spread(v) + reaction - 0.1 * v
    return torch.stack([u, v])


if __name__ == "__main__":
    print(simulate("tiny")[1, ::16, ::16].cpu())
