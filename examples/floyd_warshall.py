"""Shortest paths between all pairs of places: each step allows one more place on the way."""

import torch


def simulate(device: str, size: int = 128, steps: int | None = None) -> torch.Tensor:
    distance = torch.rand(size, size, generator=torch.Generator().manual_seed(0)).to(device) * 10
    distance.fill_diagonal_(0)
    for k in range(size if steps is None else min(steps, size)):
        distance = torch.minimum(distance, distance[:, k : k + 1] + distance[k : k + 1])
    return distance


if __name__ == "__main__":
    print(simulate("tiny")[::16, ::16].cpu())
