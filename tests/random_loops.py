"""Random loops whose steps read each other's results at other places: stencils, rolls, butterflies, scans by hand,
triangular fills and mixed chains. What compiling them takes must grow with the number of steps and no faster.

    python -m tests.fuzz --loops
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from tests.differential import DEVICE
from torch_tinygrad import _C
from torch_tinygrad.engine import fusion, kernels

# One line of a step each: x, y are 12 by 12, v has 16 elements, b 12 by 12 bools, z 16 complex numbers, i is the step.
LINES = (
    "x[1:-1, 1:-1] += 0.1 * (x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2] - 4 * x[1:-1, 1:-1])",
    "y[:, 1:] += 0.2 * (x[:, 1:] - x[:, :-1]); x[:, :-1] += 0.2 * (y[:, 1:] - y[:, :-1])",
    "x, y = 0.3 * (x.roll(1, 0) + x.roll(-1, 0) + x.roll(1, 1)) - 0.2 * y, x",
    "b = sum(b.roll((r, s), (0, 1)).int() for r in (-1, 0, 1) for s in (-1, 0, 1) if r or s) == 3",
    "z = torch.cat([z[:8] + z[8:], (z[:8] - z[8:]) * w]) * 0.6",
    "z = torch.stack([z[0::2] - z[1::2].conj(), z[0::2] * w], 1).reshape(-1) * 0.5",
    "v[1:] = v[1:] * 0.5 + v[:-1] * 0.4",
    "v = torch.cat([v[:3], torch.maximum(v[3:], v[:-3])])",
    "v[2:] = torch.maximum(v[2:], v[:-2] * 0.9 + 0.1)",
    "y[i % 11 + 1, : i % 11 + 1] = v[: i % 11 + 1] * y[i % 11, i % 11] * 0.5 + 0.1",
    "v[i % 15 + 1] = torch.minimum(v[i % 15], v[i % 15 + 1]) * 0.9 + 0.1",
    "x = torch.minimum(x, x[:, i % 12 : i % 12 + 1] + x[i % 12 : i % 12 + 1])",
    "v = v.flip(0).sin() * 0.9 + v.roll(1) * 0.1",
    "v = (v + v.sum() / 16) * 0.5",
    "x = x - x.mean(0) * 0.5; y = y * 0.5 + x.t() * 0.5",
    "v = v[order] * 0.5 + v * 0.4; y = y[:, order[:12] % 12] * 0.5 + y * 0.4",
    "p = torch.nn.functional.pad(x, (1, 1, 1, 1)); x = (p[:-2, :-2] + p[1:-1, 2:] + p[2:, 1:-1]) * 0.3",
    "p = torch.nn.functional.pad(b, (1, 1, 1, 1)); b = p[:-2, 1:-1] & p[2:, 1:-1] | p[1:-1, :-2]",
    "x = torch.where(b, x * 0.9, y); y = x.cumsum(1) * 0.1",
    "x = x @ y * 0.1 + x.triu() * 0.5",
)


def random_lines(seed: int) -> list[str]:
    """The lines of a step."""
    chosen = random.Random(seed)
    return chosen.sample(LINES, chosen.choice((1, 1, 2, 3)))


def run(lines: list[str], steps: int, device: str) -> list[torch.Tensor]:
    """What the loop leaves."""
    made = torch.Generator().manual_seed(len(lines))

    def drawn(*size: int) -> torch.Tensor:
        return torch.rand(*size, generator=made)

    names = {
        "x": drawn(12, 12), "y": drawn(12, 12), "v": drawn(16), "b": drawn(12, 12) > 0.5,
        "z": torch.complex(drawn(16), drawn(16)), "w": torch.complex(drawn(8), drawn(8)),
        "order": torch.randperm(16, generator=made),
    }  # fmt: skip
    scope = {"torch": torch, **{name: value.to(device) for name, value in names.items()}}
    code = compile("\n".join(lines), "<loop>", "exec")
    for i in range(steps):
        scope["i"] = i
        exec(code, scope)
    left = [torch.view_as_real(value) if value.is_complex() else value for value in map(scope.get, "xyvbz")]
    return [value.cpu() for value in left]


@dataclass(frozen=True)
class Size:
    """What tinygrad works through for a program: nodes of its graphs, operations of its kernels."""

    nodes: int
    operations: int
    largest: int  # of its kernels


def compiled(lines: list[str], steps: int) -> Size:
    """Runs the loop on both devices, compares what it leaves, and says what compiling it took, with nothing known."""
    _C.clear_programs()
    fusion.NODES.clear()
    kernels.OPERATIONS.clear()
    results = zip(run(lines, steps, DEVICE), run(lines, steps, "cpu"), strict=True)
    for ours, reference in results:
        torch.testing.assert_close(ours, reference)
    found = kernels.OPERATIONS
    return Size(sum(fusion.NODES), sum(found), max(found, default=0))


# A step more than doubles nothing: what twice the steps take, and the largest kernel.
GROWTH, LARGEST = 2.5, 1500


def check(lines: list[str], _seed: int = 0, *, steps: int = 8) -> None:
    """Asserts that compiling twice the steps takes about twice as much, and that no kernel is large."""
    small, large = compiled(lines, steps), compiled(lines, 2 * steps)
    assert large.nodes <= GROWTH * small.nodes, (small, large)
    assert large.operations <= GROWTH * small.operations, (small, large)
    assert large.largest <= LARGEST, (small, large)
