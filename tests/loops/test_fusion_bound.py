"""Fusion knows when to stop: a value that is read at many places is stored once, so that compiling a loop grows with
its length and no faster, and its kernels compute each element once or a few times."""

from __future__ import annotations

import pytest
import torch

from tests.differential import DEVICE, Cost, data, flush
from tests.random_loops import LINES, check, random_lines


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_compiling_grows_with_the_number_of_steps(line):
    check([line])


@pytest.mark.parametrize("seed", range(6))
def test_compiling_several_values_that_read_each_other_does_too(seed):
    check(random_lines(seed), steps=6)


def kernels_of(program) -> int:
    """How many kernels a program takes; what it returns is compared."""
    with Cost() as cost:
        ours = program(DEVICE).cpu()
    torch.testing.assert_close(ours, program("cpu"))
    return cost.spent["kernels"]


def heat(device, steps, n=64):
    u = data(n, n, device=device)
    for _ in range(steps):
        u[1:-1, 1:-1] += 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    return u


def life(device, steps, n=64):
    alive = data(n, n, device=device) > 0
    for _ in range(steps):
        near = sum(alive.roll((r, s), (0, 1)).int() for r in (-1, 0, 1) for s in (-1, 0, 1) if r or s)
        alive = (near == 3) | (alive & (near == 2))
    return alive


@pytest.mark.parametrize("steps", [4, 20])
@pytest.mark.parametrize("program", [heat, life])
def test_a_step_of_a_stencil_is_one_kernel(program, steps):
    """And what comes before a loop may be one more."""
    assert steps <= kernels_of(lambda device: program(device, steps)) <= steps + 1


def test_a_step_of_a_stencil_reads_what_the_last_one_left_and_nothing_older():
    u = data(64, 64, device=DEVICE)
    flush()
    with Cost() as cost:
        for _ in range(8):
            u[1:-1, 1:-1] = (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]) * 0.25
        flush()
    cost.expect(kernels=8, bytes_moved=8 * 2 * u.nbytes)


def test_a_loop_over_cells_of_any_length_is_a_kernel_for_each_row():
    """No length is unrolled into one expression: 7 is as short as 31."""

    def distances(device, n):
        table = torch.zeros(n + 1, n + 1, device=device)
        table[0] = table[:, 0] = torch.arange(n + 1.0)
        differ = (data(n, 1, device=device) > 0) != (data(n, device=device) > 0.2)
        cost = differ.float()
        for i in range(1, n + 1):
            for j in range(1, n + 1):
                near = torch.minimum(table[i - 1, j], table[i, j - 1]) + 1
                table[i, j] = torch.minimum(near, table[i - 1, j - 1] + cost[i - 1, j - 1])
        return table

    for n in (8, 20, 33):
        assert kernels_of(lambda device, n=n: distances(device, n)) <= 2 * n + 4


@pytest.mark.parametrize("stages", [2, 6])
def test_complex_stages_are_stored_too(stages):
    def butterflies(device):
        z = torch.complex(data(64, device=device), data(64, device=device))
        for _ in range(stages):
            z = torch.cat([z[:32] + z[32:], (z[:32] - z[32:]) * z[:32].conj()]) * 0.5
        return torch.view_as_real(z)

    assert kernels_of(butterflies) <= 2 * stages
