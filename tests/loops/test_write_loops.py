"""Loops of writes, element by element or row by row, become one kernel, and their second run compiles nothing."""

from __future__ import annotations

import pytest
import torch

from tests.differential import DEVICE, Cost, both, data, flush


def fill(n, device):
    a = torch.empty(n, device=device)
    v, w = a[1:3], a.view(-1, 2)
    for i in range(n):
        a[i] = i
    return a.tolist(), v.tolist(), w.tolist()


@pytest.mark.parametrize("n", [2, 10, 1000])
def test_loop_of_writes_is_one_kernel_and_its_second_run_compiles_nothing(n):
    with Cost() as first:
        a, v, w = fill(n, DEVICE)
    assert a == list(range(n)) and v == a[1:3] and w == [a[i : i + 2] for i in range(0, n, 2)]
    first.expect(kernels=1)
    with Cost() as second:
        again = fill(n, DEVICE)
    assert again == (a, v, w)
    second.expect(kernels=1, compiles=0)


def test_loop_of_ten_thousand_writes_is_one_kernel():
    with Cost() as cost:
        a, v, w = fill(10_000, DEVICE)
    assert a == list(range(10_000)) and v == [1, 2] and w[-1] == [9998, 9999]
    cost.expect(kernels=1)
    with Cost() as second:
        fill(10_000, DEVICE)
    second.expect(kernels=1, compiles=0)


def loop_expression(d, n):
    a, b = torch.empty(n, device=d), data(n, device=d)
    for i in range(n):
        a[i] = b[i] * 2 + i
    return [a]


def loop_nested(d, n):
    m = torch.empty(n, n, device=d)
    for i in range(n):
        for j in range(n):
            m[i, j] = i * j
    return [m]


def loop_rows(d, n):
    m, x = torch.empty(n, 8, device=d), data(8, device=d)
    for i in range(n):
        m[i] = x * i
    return [m]


def loop_steps(d, n):
    a = torch.zeros(3 * n, device=d)
    for i in range(0, 3 * n, 3):
        a[i] = i + 1
    return [a]


def loop_reversed(d, n):
    a = torch.empty(n, device=d)
    for i in reversed(range(n)):
        a[i] = 2 * i
    return [a]


def loop_columns_of_permuted(d, n):
    m = torch.empty(6, n, device=d)
    r, x = m.permute(1, 0), data(6, device=d)
    for i in range(n):
        r[i] = x + i
    return [m, r]


def loop_columns(d, n):
    m, x = torch.empty(6, n, device=d), data(6, device=d)
    for i in range(n):
        m[:, i] = x * i
    return [m]


def loop_overlapping(d, n):
    a = torch.empty(n + 2, device=d)
    for i in range(n):
        a[i : i + 3] = i
    return [a]


def loop_accumulate(d, n):
    a, b = data(n, seed=1, device=d), data(n, device=d)
    for i in range(n):
        a[i] += b[i]
    return [a]


def loop_from_list(d, n):
    values = [((i * 7919) % 101) / 4 for i in range(n)]
    a = torch.empty(n, device=d)
    for i, value in enumerate(values):
        a[i] = value
    return [a]


def loop_integers(d, n):
    a = torch.empty(n, dtype=torch.int64, device=d)
    for i in range(n):
        a[i] = 3 * i - 5
    return [a]


def loop_blocks(d, n):
    a, b = torch.empty(n, 4, device=d), data(n, 2, device=d)
    for i in range(n):
        a[i, :2] = b[i]
        a[i, 2:] = b[i] + 1
    return [a]


LOOPS = {
    "expression": (loop_expression, 100),
    "nested": (loop_nested, 32),
    "rows": (loop_rows, 50),
    "steps": (loop_steps, 60),
    "reversed": (loop_reversed, 100),
    "columns_of_permuted": (loop_columns_of_permuted, 40),
    "columns": (loop_columns, 40),
    "overlapping": (loop_overlapping, 50),
    "accumulate": (loop_accumulate, 80),
    "from_list": (loop_from_list, 120),
    "integers": (loop_integers, 100),
    "blocks": (loop_blocks, 40),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loop_is_one_kernel_and_replays(name):
    loop, n = LOOPS[name]
    want = [t.tolist() for t in loop("cpu", n)]
    with Cost() as first:
        got = [t.tolist() for t in loop(DEVICE, n)]
    assert got == want
    first.expect(kernels=1)
    with Cost() as second:
        got = [t.tolist() for t in loop(DEVICE, n)]
    assert got == want
    second.expect(kernels=1, compiles=0)


@pytest.mark.parametrize("name", LOOPS)
def test_short_loop_is_right(name):
    loop, _ = LOOPS[name]
    for n in (1, 2, 3):
        assert [t.tolist() for t in loop(DEVICE, n)] == [t.tolist() for t in loop("cpu", n)]


def test_loop_with_other_values_replays_the_same_program():
    def run(scale):
        a = torch.empty(30, device=DEVICE)
        for i in range(30):
            a[i] = scale * ((i * 37) % 11)
        return a.tolist()

    assert run(0.5) == [0.5 * ((i * 37) % 11) for i in range(30)]
    run(0.25)
    with Cost() as cost:
        assert run(1.5) == [1.5 * ((i * 37) % 11) for i in range(30)]
    cost.expect(kernels=1, compiles=0)


def test_loop_that_writes_two_tensors_in_turn_is_one_kernel_each():
    def loop(device):
        a, b = torch.empty(64, device=device), torch.empty(64, device=device)
        for i in range(64):
            a[i] = i
            b[63 - i] = 2 * i
        return a.tolist(), b.tolist()

    with Cost() as cost:
        got = loop(DEVICE)
    assert got == loop("cpu")
    cost.at_most(kernels=2)
    with Cost() as again:
        loop(DEVICE)
    again.at_most(kernels=2, compiles=0)


def test_read_between_writes_gives_the_value_at_that_point():
    def program(device):
        a = torch.zeros(20, device=device)
        seen = []
        for i in range(20):
            a[i] = i + 1
            if i % 5 == 0:
                seen.append(a.sum())
                seen.append(a[: i + 1] * 2)
        yield
        numbers = []
        for i in range(6):
            a[i] = -i
            numbers.append(a[i].item() + a.sum().item())
        yield

    both(program)


def test_recurrence_is_right():
    def loop(device, n):
        a, b = torch.zeros(n, device=device), data(n, device=device)
        for i in range(1, n):
            a[i] = a[i - 1] * 0.5 + b[i]
        return a.cpu()

    torch.testing.assert_close(loop(DEVICE, 500), loop("cpu", 500))


def test_recurrence_of_two_terms_is_right():
    def program(device):
        a = torch.ones(40, dtype=torch.int64, device=device)
        for i in range(2, 40):
            a[i] = a[i - 1] + a[i - 2]
        yield

    both(program, schedules=("lazy",))


def test_last_of_many_writes_to_one_place_wins():
    def program(device):
        a = torch.zeros(8, device=device)
        for i in range(30):
            a[i % 8] = i
        a[2:6] = -1
        a[3] = 100
        yield

    both(program)
    with Cost() as cost:
        a = torch.zeros(8, device=DEVICE)
        for i in range(30):
            a[3] = i
        assert a.tolist() == [0, 0, 0, 29, 0, 0, 0, 0]
    cost.expect(kernels=1)


def test_overwritten_values_are_never_computed():
    x = data(64, device=DEVICE)
    with Cost() as cost:
        a = torch.empty(64, device=DEVICE)
        for i in range(5):
            a.copy_(x.exp() * i)
        flush()
    cost.expect(kernels=1)
    cost.at_most(bytes_moved=3 * 256)


def test_loop_over_a_realized_tensor_writes_it_in_place():
    a = data(100, device=DEVICE)
    flush()
    address = a.data_ptr()
    with Cost() as cost:
        for i in range(10, 20):
            a[i] = i
        flush()
    want = data(100)
    want[10:20] = torch.arange(10.0, 20.0)
    assert torch.equal(a.cpu(), want) and a.data_ptr() == address
    cost.expect(kernels=1)
