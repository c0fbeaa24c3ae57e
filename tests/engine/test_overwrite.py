"""Results lie where the values they replace lay, and only where nobody can tell."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.differential import both, data
from torch_tinygrad import _C
from torch_tinygrad.choice import is_host

ROWS = 96


def a_moment_and_what_reads_it(m, g, p):
    m.lerp_(g, 0.1)
    p.addcdiv_(m, g.abs() + 1)


def the_old_value_beside_the_new(m, g, p):
    before = m * 2
    m.lerp_(g, 0.1)
    p.copy_(before - m.sqrt().abs() * p)


def other_elements_of_the_old_value(m, g, p):
    m.copy_(m.roll(1, 0) * 0.5 + g)
    p.add_(m.exp() * m)


def the_old_value_transposed(m, g, p):
    m.copy_(m.t() + g.tanh())
    p.add_(m.exp() * m)


def sums_of_the_old_value(m, g, p):
    m.copy_(m / m.sum(1, keepdim=True) + g)
    p.add_(m.exp() * m)


def the_old_value_under_a_condition(m, g, p):
    m.copy_(torch.where(g > 0, m, g.exp()))
    p.copy_(torch.where(p > 0, m * 2, m.sin() * m))


def two_that_change_places(m, g, p):
    before = m.clone()
    m.copy_(p.exp() + g)
    p.copy_(before.exp() + g)
    g.add_(m * p)


def both_values_in_one_product(m, g, p):
    before = m.exp()
    m.mul_(0.5).add_(g.exp())
    p.copy_(before @ m)


PROGRAMS = [
    a_moment_and_what_reads_it,
    the_old_value_beside_the_new,
    other_elements_of_the_old_value,
    the_old_value_transposed,
    sums_of_the_old_value,
    the_old_value_under_a_condition,
    two_that_change_places,
    both_values_in_one_product,
]


@pytest.mark.parametrize("change", PROGRAMS, ids=lambda change: change.__name__)
def test_values_are_those_of_the_cpu(change):
    def program(device):
        m, g, p = (data(ROWS, ROWS, device=device) for _ in range(3))
        part, row = m[1::2, 3:], p[5]
        yield
        for _ in range(3):
            change(m, g, p)
            yield
        return m, g, p, part.sum(), row * 2

    both(program, rtol=1e-4, atol=1e-4)


def test_what_the_cpu_computes_is_not_lost():
    """Found by fuzzing: a step of ATen's has its result where it allocated it."""

    def program(device):
        a = torch.view_as_complex(data(1, 5, 2, device=device))
        b = data(ROWS, ROWS, device=device)
        yield
        a[0::2] = True
        a.reshape(-1).nan_to_num_(2)
        b.copy_(b.t() @ b + 0)
        yield
        return a, b * 2

    both(program)


def test_what_is_overwritten_is_not_loaded_again():
    """Found by fuzzing: a C compiler loaded an element for a second result after the first had been stored over it."""

    def program(device):
        a = data(5, 2, dtype=torch.int64, device=device).permute(1, 0)
        b = data(2, 5, dtype=torch.bool, device=device)
        yield
        c = -a
        a.add_(b)
        return a, c

    both(program)


@pytest.mark.skipif(not is_host(), reason="addresses are the host's")
@pytest.mark.parametrize(
    "make",
    [torch.optim.AdamW, torch.optim.Adam, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)],
    ids=["AdamW", "Adam", "SGD"],
)
def test_an_optimizer_keeps_everything_in_its_place(make):
    parameters = [nn.Parameter(torch.randn(size, device="tiny")) for size in ((200, 300), (5000,), (7,))]
    optimizer = make(parameters)

    def step() -> list[int]:
        for p in parameters:
            p.grad = p.detach() * 0.1
        optimizer.step()
        state = [t for p in parameters for t in optimizer.state[p].values() if torch.is_tensor(t)]
        return [_C.buffer_address(t.detach()) for t in (*parameters, *state) if t.device.type == "tiny"]

    step()
    places = step()
    assert step() == places and step() == places
