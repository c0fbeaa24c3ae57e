"""A matrix is taken apart into triangular ones in its own memory: each step works on a smaller corner of it."""

import torch


def simulate(device: str, size: int = 48, steps: int | None = None) -> torch.Tensor:
    a = torch.rand(size, size, generator=torch.Generator().manual_seed(0)).to(device)
    a += size * torch.eye(size, device=device)  # so that no pivot is small
    for k in range(size - 1 if steps is None else min(steps, size - 1)):
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= a[k + 1 :, k : k + 1] * a[k : k + 1, k + 1 :]
    return a


if __name__ == "__main__":
    print(simulate("tiny")[::8, ::8].cpu())
