"""How many letters turn one word into another: a table filled cell by cell, each from three that were filled before."""

import torch


def simulate(device: str, size: int = 64, steps: int | None = None) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    left, right = torch.randint(0, 4, (2, size), generator=random).to(device)
    rows = size if steps is None else min(steps, size)
    differ = (left[:, None] != right[None]).float()
    table = torch.zeros(rows + 1, size + 1, device=device)
    table[0], table[:, 0] = torch.arange(size + 1.0), torch.arange(rows + 1.0)
    for i in range(1, rows + 1):
        for j in range(1, size + 1):
            changed = table[i - 1, j - 1] + differ[i - 1, j - 1]
            table[i, j] = torch.minimum(torch.minimum(table[i - 1, j], table[i, j - 1]) + 1, changed)
    return table


if __name__ == "__main__":
    print("distance:", simulate("tiny")[-1, -1].item())
