"""Fusion knows when to stop: a value that is read at many places is stored once, so that compiling a loop grows with
its length and no faster, and its kernels compute each element once or a few times."""

from __future__ import annotations

import pytest
import torch

import torch_tinygrad
from tests.differential import COMPILES, DEVICE, ON_TINY, Cost, data, flush
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


def test_a_long_chain_of_single_numbers_is_compiled():
    """It is stored on the way like any other value, though it has no loops."""

    def chain(device):
        s = data(300, device=device).sum()
        for i in range(40):
            s = (s * 0.9 + 0.1 * i).sin() if i % 3 else s.abs() + 1
        return s

    before = torch.tiny.stats()["not_compiled"]
    assert kernels_of(chain) >= (ON_TINY and COMPILES)
    assert torch.tiny.stats()["not_compiled"] == before


def triangular_fill(device, n):
    m, v = torch.zeros(n, n, device=device), data(n, device=device)
    for i in range(1, n):
        m[i, :i] = v[:i] * i + m[i - 1, :i]
    return m


def test_rows_of_growing_length_are_written_where_they_lie():
    n = 60
    with Cost() as cost:
        assert kernels_of(lambda device: triangular_fill(device, n)) <= n + 4
    assert cost.spent["bytes_moved"] < 8 * 4 * n * n  # and the table is not copied for each of them


def test_a_row_is_not_written_over_what_it_still_reads():
    def shifted(device):
        m = torch.zeros(20, 20, device=device)
        m[0] = data(20, device=device)
        for i in range(1, 12):
            m[i, :i] = m[i - 1, :i] + 1
            m[i, 1 : i + 1] = m[i, :i] * 0.5 + m[i, i]  # what is read and what is written overlap
        return m

    kernels_of(shifted)


def test_a_step_of_a_stencil_reads_what_the_last_one_left_and_nothing_older():
    u = data(64, 64, device=DEVICE)
    flush()
    with Cost() as cost:
        for _ in range(8):
            u[1:-1, 1:-1] = (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]) * 0.25
        flush()
    cost.expect(kernels=8, bytes_moved=8 * 2 * u.nbytes)


def distances(device, n, by_columns):
    table = torch.zeros(n + 1, n + 1, device=device)
    table[0] = table[:, 0] = torch.arange(n + 1.0)
    cost = ((data(n, 1, device=device) > 0) != (data(n, device=device) > 0.2)).float()
    for outer in range(1, n + 1):
        for inner in range(1, n + 1):
            i, j = (inner, outer) if by_columns else (outer, inner)
            near = torch.minimum(table[i - 1, j], table[i, j - 1]) + 1
            table[i, j] = torch.minimum(near, table[i - 1, j - 1] + cost[i - 1, j - 1])
    return table


def forward_of_ctc(device, n):
    """The first cell of each row has one neighbour less than the others."""
    chances, alpha = data(n, n, device=device), torch.zeros(n, n, device=device)
    for t in range(1, n):
        for s in range(n):
            came = torch.logaddexp(alpha[t - 1, s], alpha[t - 1, s - 1]) if s else alpha[t - 1, s]
            alpha[t, s] = came + chances[t, s]
    return alpha


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("n", [8, 12, 20, 33])
def test_a_table_that_is_filled_cell_by_cell_is_a_few_kernels(n, by_columns):
    """No length is unrolled into one expression, and rows are no kernels of their own."""
    torch_tinygrad._C.clear_programs()  # both orders are one family, whose programs would take places as inputs
    assert kernels_of(lambda device: distances(device, n, by_columns)) <= 5


def test_cells_that_differ_at_the_edge_of_a_table_are_in_the_same_kernel():
    assert kernels_of(lambda device: forward_of_ctc(device, 12)) <= 5


def test_rows_of_other_numbers_and_of_what_lies_between_them():
    """Numbers that differ from cell to cell and from row to row, and a write after each row."""

    def program(device):
        table, ends = torch.zeros(12, 13, device=device), torch.zeros(12, device=device)
        for i in range(11):
            for j in range(12):
                table[i + 1, j + 1] = table[i, j + 1] * 0.5 + table[i + 1, j] * (0.01 * j) + (i + 1) * 0.1
            ends[i + 1] = table[i + 1, 12] + ends[i]
        return torch.cat([table.flatten(), ends])

    kernels_of(program)


def test_a_row_that_is_longer_than_the_others_is_a_loop_of_its_own():
    def program(device):
        x = data(200, device=device)
        for rows, length in ((4, 9), (1, 17), (4, 9)):
            for r in range(rows):
                for j in range(length):
                    x[r * 20 + j + 1] = x[r * 20 + j] * 0.9 + x[r * 20 + j + 1]
        return x

    kernels_of(program)


@pytest.mark.parametrize("stages", [2, 6])
def test_complex_stages_are_stored_too(stages):
    def butterflies(device):
        z = torch.complex(data(64, device=device), data(64, device=device))
        for _ in range(stages):
            z = torch.cat([z[:32] + z[32:], (z[:32] - z[32:]) * z[:32].conj()]) * 0.5
        return torch.view_as_real(z)

    assert kernels_of(butterflies) <= 2 * stages
