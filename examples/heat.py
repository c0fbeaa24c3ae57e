"""Heat spreads over a plate: each inner point moves towards its four neighbours, in place, through slices."""

import torch


def simulate(device: str, size: int = 256, steps: int = 100) -> torch.Tensor:
    u = torch.zeros(size, size, device=device)
    u[size // 4 : size // 2, size // 4 : size // 2] = 1.0  # a hot square
    u[0] = 0.5  # and a warm edge
    for _ in range(steps):
        u[1:-1, 1:-1] += 0.2 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    return u


if __name__ == "__main__":
    print(simulate("tiny")[::32, ::32].cpu())
