"""A Kalman filter follows a thousand moving points from noisy positions: place, speed, and how sure it is."""

import torch


def simulate(device: str, size: int = 1000, steps: int = 100) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    speeds = torch.randn(size, generator=random)
    noise = torch.randn(steps, size, generator=random)
    seen = (speeds * torch.arange(1.0, steps + 1)[:, None] + noise).to(device)
    move = torch.tensor([[1.0, 1.0], [0.0, 1.0]], device=device)
    doubt = torch.tensor([[0.01, 0.0], [0.0, 0.01]], device=device)
    state, variance = torch.zeros(2, size, device=device), torch.eye(2, device=device) * 10
    path = torch.empty(steps, size, device=device)
    for t in range(steps):
        state, variance = move @ state, move @ variance @ move.T + doubt
        gain = variance[:, :1] / (variance[0, 0] + 1.0)
        state = state + gain * (seen[t] - state[0])
        variance = variance - gain * variance[:1]
        path[t] = state[0]
    return path


if __name__ == "__main__":
    print(simulate("tiny")[-1, :8].cpu())
