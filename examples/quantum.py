"""A quantum circuit by views: a qubit is a dimension of size two, and a gate mixes the two halves of the state."""

import torch


def halves(state: torch.Tensor, qubit: int) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = state.view(2**qubit, 2, -1)
    return pairs[:, 0], pairs[:, 1]


def rotate(state: torch.Tensor, qubit: int, angle: float) -> torch.Tensor:
    zero, one = halves(state, qubit)
    c, s = torch.cos(torch.tensor(angle)).item(), torch.sin(torch.tensor(angle)).item()
    return torch.stack([c * zero - s * one, s * zero + c * one], 1).reshape(-1)


def simulate(device: str, size: int = 10, steps: int = 4) -> torch.Tensor:
    """The probabilities of all outcomes of `size` qubits after `steps` layers of gates."""
    state = torch.zeros(2**size, dtype=torch.complex64, device=device)
    state[0] = 1
    for layer in range(steps):
        for qubit in range(size):
            state = rotate(state, qubit, 0.3 + 0.1 * qubit + 0.05 * layer)
        for qubit in range(size - 1):  # a phase where two neighbours are both one
            state.view(2**qubit, 2, 2, -1)[:, 1, 1] *= 1j
    return state.abs() ** 2


if __name__ == "__main__":
    print(simulate("tiny").topk(5))
