"""The Ising model by Metropolis's rule on a checkerboard: black spins turn while the white ones stand, and so on."""

import torch


def simulate(device: str, size: int = 128, steps: int = 50, coupling: float = 0.44) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    spins = (torch.randint(0, 2, (size, size), generator=random) * 2 - 1).float().to(device)
    draws = torch.rand(steps, 2, size, size, generator=random).to(device)
    place = torch.arange(size, device=device)
    black = (place[:, None] + place[None]) % 2 == 0
    for step in range(steps):
        for half, board in enumerate((black, ~black)):
            field = spins.roll(1, 0) + spins.roll(-1, 0) + spins.roll(1, 1) + spins.roll(-1, 1)
            turns = board & (draws[step, half] < torch.exp(-2 * coupling * spins * field))
            spins = torch.where(turns, -spins, spins)
    return spins


if __name__ == "__main__":
    for row in simulate("tiny", 32).tolist():
        print("".join(".#"[spin > 0] for spin in row))
