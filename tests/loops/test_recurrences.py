"""Loops whose iterations need each other's results: right, one kernel however long, and compiled in no time."""

from __future__ import annotations

import pytest
import torch

from tests.differential import DEVICE, Cost, both, data, flush

N = 70  # more than what is unrolled


def halves(device):
    a, b = torch.zeros(N, device=device), data(N, device=device)
    for i in range(1, N):
        a[i] = a[i - 1] * 0.5 + b[i]
    return a, b


def two_terms_of_integers(device):
    a = torch.ones(N, dtype=torch.int64, device=device)
    for i in range(2, N):
        a[i] = a[i - 1] + a[i - 2]
    return a


def backwards(device):
    a = data(N, device=device)
    for i in range(N - 2, -1, -1):
        a[i] = (a[i + 1] - a[i]) * 0.5
    return a


def with_its_number(device):
    a = torch.zeros(N, dtype=torch.float64, device=device)
    for i in range(1, N):
        a[i] = a[i - 1] * 0.5 + i
    return a


def two_in_turn(device):
    a, b = torch.zeros(N, device=device), torch.ones(N, device=device)
    for i in range(1, N):
        a[i] = b[i - 1] * 0.25 + 1
        b[i] = a[i] - a[i - 1]
    return a, b


def rows(device):
    m, x = torch.zeros(N, 5, device=device), data(5, device=device)
    for i in range(1, N):
        m[i] = m[i - 1] * 0.5 + x
    return m


def columns_of_a_permuted_matrix(device):
    m = torch.zeros(3, N, device=device)
    v = m.t()
    for i in range(1, N):
        v[i] = (v[i - 1] + 1).clamp(max=4)
    return m, v


def rows_that_overlap(device):
    a = data(N + 4, device=device)
    for i in range(N):
        a[i + 1 : i + 4] = a[i : i + 3] * 0.5
    return a


def rows_of_different_widths(device):
    a, s = data(N, 4, device=device), torch.zeros(N, device=device)
    for i in range(1, N):
        s[i] = s[i - 1] + a[i, 0]
        a[i] = a[i - 1] * 0.5 + s[i]
    return a, s


def halves_of_narrow_floats(device):
    a = torch.ones(N, dtype=torch.float16, device=device)
    for i in range(1, N):
        a[i] = a[i - 1] * 1.25 - 0.125
    return a


def wrapping_bytes(device):
    a = torch.ones(N, dtype=torch.uint8, device=device)
    for i in range(1, N):
        a[i] = a[i - 1] * 3 + 7
    return a


def choices(device):
    a, b = torch.zeros(N, device=device), data(N, device=device)
    for i in range(1, N):
        a[i] = torch.where(a[i - 1] > b[i], a[i - 1], b[i] * 0.5)
    return a


def sums_in_place(device):
    a = data(N, device=device)
    for i in range(1, N):
        a[i] += a[i - 1]
    return a


def a_part_of_a_long_buffer(device):
    a = data(4 * N, device=device)
    a[: 2 * N].mul_(2)
    part = a[N : 3 * N : 2]
    for i in range(1, N):
        part[i] = part[i - 1] * 0.5 + a[i]
    return a * 2, part


def through_another_dtype(device):
    a = torch.zeros(N, device=device)
    bits = a.view(torch.int32)
    for i in range(1, N):
        bits[i] = bits[i - 1] + 1
        a[i] *= 0.5
    return a


RECURRENCES = [
    halves, two_terms_of_integers, backwards, with_its_number, two_in_turn, rows, columns_of_a_permuted_matrix,
    rows_that_overlap, rows_of_different_widths, halves_of_narrow_floats, wrapping_bytes, choices, sums_in_place,
    a_part_of_a_long_buffer, through_another_dtype,
]  # fmt: skip


@pytest.mark.parametrize("loop", RECURRENCES, ids=lambda loop: loop.__name__)
def test_recurrence_gives_the_values_of_the_cpu(loop):
    both(loop, schedules=("lazy",))


def recurrence(a, b, factor):
    for i in range(1, len(a)):
        a[i] = a[i - 1] * factor + b[i]


@pytest.mark.parametrize("n", [100, 2000])
def test_recurrence_on_a_buffer_is_one_kernel(n):
    a, b = torch.zeros(n, device=DEVICE), data(n, device=DEVICE)
    buffer = a.data_ptr()
    with Cost() as cost:
        recurrence(a, b, 0.5)
        flush()
    cost.expect(kernels=1)
    expected = torch.zeros(n)
    recurrence(expected, b.cpu(), 0.5)
    torch.testing.assert_close(a.cpu(), expected)
    assert a.data_ptr() == buffer


def test_recurrence_with_another_factor_compiles_once_more_at_most():
    b = data(N, device=DEVICE)
    for factor, compiles in ((0.5, None), (0.25, None), (0.125, 0), (0.75, 0)):
        a = torch.zeros(N, device=DEVICE)
        with Cost() as cost:
            recurrence(a, b, factor)
            flush()
        if compiles is not None:
            cost.expect(compiles=compiles)
        expected = torch.zeros(N)
        recurrence(expected, b.cpu(), factor)
        torch.testing.assert_close(a.cpu(), expected)


def test_a_loop_in_turn_leaves_its_result_where_it_was_computed():
    def sums(device):
        a = data(N, device=device).exp()
        for i in range(1, N):
            a[i] = a[i - 1] * 0.5 + a[i]
        return a

    with Cost() as cost:
        ours = sums(DEVICE).cpu()
    torch.testing.assert_close(ours, sums("cpu"))
    assert cost.spent["kernels"] == 2  # no third one that copies it
