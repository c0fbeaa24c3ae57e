"""What is written block by block and read as a whole, or in other blocks: blocks are laid side by side, not copied."""

from __future__ import annotations

import pytest
import torch

from tests.differential import ON_TINY, Cost, both, flush, normal

# Blocks of this many elements are buffers of their own.
ROWS, WIDTH = 64, 64


def factors(device: str, count: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    weight = normal(WIDTH, WIDTH, seed=1).to(device)
    return weight, [normal(ROWS, WIDTH, seed=2 + i).to(device) for i in range(count)]


def products_side_by_side(device):
    weight, given = factors(device, 4)
    out = torch.empty(4, ROWS, WIDTH, device=device)
    for i, x in enumerate(given):
        out[i] = x @ weight
    yield
    total = out.view(-1, WIDTH).t() @ out.view(-1, WIDTH)
    yield
    last = out[3] * 2 + out[1]
    yield
    rows = out[1:3].reshape(-1, WIDTH) @ weight
    yield
    middle = out.view(-1)[ROWS * WIDTH // 2 : 3 * ROWS * WIDTH // 2].clone()
    yield total, last, rows, middle


def written_backwards_and_read_on_the_way(device):
    weight, given = factors(device, 3)
    out = torch.empty(3, ROWS, WIDTH, device=device)
    state = given[0]
    for i in (2, 1, 0):
        state = (out[i].copy_(state @ weight) * 0.1 + given[i]).tanh()
    yield
    yield out.sum(0), out.flip(0), state


def a_block_is_written_again(device):
    weight, given = factors(device, 3)
    out = torch.empty(3, ROWS, WIDTH, device=device)
    for i, x in enumerate(given):
        out[i] = x @ weight
    whole = out.view(-1, WIDTH) @ weight
    yield
    out[1] = given[0] @ weight
    out[2, 5:9] = 0
    yield whole, out.view(-1, WIDTH) @ weight


def blocks_that_others_hold(device):
    """The same product is in two wholes, and seen by itself."""
    weight, given = factors(device, 2)
    one, two = (x @ weight for x in given)
    first, second = torch.stack([one, two]), torch.stack([two, one])
    yield
    yield first.view(-1, WIDTH) @ weight, second.view(-1, WIDTH) @ weight


def blocks_of_blocks(device):
    weight, given = factors(device, 4)
    halves = []
    for a, b in (given[:2], given[2:]):
        half = torch.empty(2, ROWS, WIDTH, device=device)
        half[0], half[1] = a @ weight, b @ weight
        halves.append(half.view(-1, WIDTH) @ weight)
    out = torch.empty(2, 2 * ROWS, WIDTH, device=device)
    out[0], out[1] = halves
    yield
    yield out.view(-1, WIDTH) @ weight, halves[1][:ROWS] + 1


def a_part_of_what_is_overwritten_in_place(device):
    state = normal(4 * ROWS, WIDTH).to(device)
    yield
    state.index_put_((torch.tensor([3, 5]).to(device),), torch.ones(2, WIDTH).to(device))
    copy, part = state.clone(), state[ROWS : 2 * ROWS] * 2
    state[7] = 5.0
    state.mul_(2)
    yield copy, part, state[ROWS : 2 * ROWS] + 1


def integers_and_other_types(device):
    out = torch.empty(2, 4096, dtype=torch.int32, device=device)
    out[0] = torch.arange(4096, device=device).cumsum(0)
    out[1] = torch.arange(4096, device=device).flip(0).sort().values
    yield
    yield out.view(torch.float32).isnan().sum(), out.view(torch.int16)[:, ::3].clone(), out.sum()


PROGRAMS = [
    products_side_by_side,
    written_backwards_and_read_on_the_way,
    a_block_is_written_again,
    blocks_that_others_hold,
    blocks_of_blocks,
    a_part_of_what_is_overwritten_in_place,
    integers_and_other_types,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program(program):
    both(program, rtol=1e-4, atol=1e-3)


@pytest.mark.skipif(not ON_TINY, reason="counts kernels")
def test_blocks_are_not_copied_together():
    weight, given = factors("tiny", 4)
    flush()
    with Cost() as cost:
        out = torch.empty(4, ROWS, WIDTH, device="tiny")
        for i, x in enumerate(given):
            out[i] = x @ weight
        total = out.view(-1, WIDTH).t() @ out.view(-1, WIDTH)
        flush()
    cost.at_most(kernels=5)
    assert total.shape == (WIDTH, WIDTH)
