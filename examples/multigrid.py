"""Poisson's equation by V-cycles: errors that are smooth on a fine grid are rough on a coarse one, and vanish there."""

import torch


def smooth(u: torch.Tensor, f: torch.Tensor, h: float, times: int) -> None:
    for _ in range(times):
        mean = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        u[1:-1, 1:-1] = 0.2 * u[1:-1, 1:-1] + 0.2 * (mean + h * h * f[1:-1, 1:-1])


def cycle(u: torch.Tensor, f: torch.Tensor, h: float) -> None:
    smooth(u, f, h, 3)
    if len(u) <= 5:
        return
    left = torch.zeros_like(u)
    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    left[1:-1, 1:-1] = f[1:-1, 1:-1] - (4 * u[1:-1, 1:-1] - around) / (h * h)
    coarse = torch.zeros(len(u) // 2 + 1, len(u) // 2 + 1, device=u.device)
    cycle(coarse, left[::2, ::2], 2 * h)
    u[::2, ::2] += coarse
    u[1::2, ::2] += 0.5 * (coarse[1:] + coarse[:-1])
    u[::2, 1::2] += 0.5 * (coarse[:, 1:] + coarse[:, :-1])
    u[1::2, 1::2] += 0.25 * (coarse[1:, 1:] + coarse[:-1, 1:] + coarse[1:, :-1] + coarse[:-1, :-1])
    smooth(u, f, h, 3)


def simulate(device: str, size: int = 65, steps: int = 5) -> torch.Tensor:
    """On size by size points, with size - 1 a power of two."""
    x = torch.linspace(0, 1, size).to(device)
    f = torch.sin(torch.pi * x)[:, None] * torch.sin(3 * torch.pi * x)[None]
    u = torch.zeros(size, size, device=device)
    for _ in range(steps):
        cycle(u, f, 1 / (size - 1))
    return u


if __name__ == "__main__":
    print(simulate("tiny")[::8, ::8].cpu())
