"""Diagonals in all their forms, forward and backward: where earlier backends returned zeros."""
# ruff: noqa: F841 - the differential helper compares the local variables of a program

from __future__ import annotations

import itertools

import pytest
import torch

from tests.differential import DEVICE, Cost, both, data, normal, same_error

OFFSETS = (-5, -2, -1, 0, 1, 3, 6)
SHAPES = ((4, 4), (3, 5), (5, 3), (1, 4), (0, 3), (3, 0))
BATCHED = ((2, 3, 4), (2, 2, 3, 3))


def test_diag_of_a_vector_is_the_diagonal_matrix_in_one_kernel():
    with Cost() as cost:
        got = torch.diag(torch.tensor([1.0, 2.0, 3.0], device=DEVICE)).tolist()
    assert got == [[1, 0, 0], [0, 2, 0], [0, 0, 3]]
    cost.at_most(kernels=1)
    cost.no_fallbacks()


def run_all(calls, shapes):
    """Every call on every shape, forward and backward, as one program: one step, so that one flush serves all."""

    def program(device):
        results, gradients = [], []
        for shape, call in itertools.product(shapes, calls):
            x = normal(*shape, device=device).requires_grad_()
            y = call(x)
            results.append(y)
            if y.numel() and y.requires_grad:
                (y * normal(*y.shape, seed=1, device=device)).sum().backward()
                gradients.append(x.grad)
        yield

    both(program, schedules=("lazy",))


def valid(call, shape):
    try:
        call(torch.zeros(shape))
    except (RuntimeError, IndexError):
        return False
    return True


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("length", [0, 1, 4])
def test_diag_and_diagflat_of_a_vector_at_every_offset(offset, length):
    run_all([lambda x: torch.diag(x, offset), lambda x: torch.diagflat(x, offset)], [(length,)])


@pytest.mark.parametrize("offset", OFFSETS)
def test_diag_of_a_matrix_at_every_offset(offset):
    shapes = [s for s in SHAPES if valid(lambda x: torch.diag(x, offset), s)]
    assert shapes
    run_all([lambda x: torch.diag(x, offset)], shapes)


@pytest.mark.parametrize("offset", OFFSETS)
def test_diagonal_and_its_copy_at_every_offset(offset):
    shapes = [s for s in SHAPES if valid(lambda x: torch.diagonal(x, offset), s)]
    run_all(
        [
            lambda x: torch.diagonal(x, offset) * 1,
            lambda x: torch.diagonal_copy(x, offset),
            lambda x: torch.linalg.diagonal(x, offset=offset) * 1,
        ],
        shapes,
    )


@pytest.mark.parametrize("dims", [(0, 1), (1, 0), (-2, -1), (0, -1), (-1, 0)])
@pytest.mark.parametrize("offset", [-1, 0, 2])
def test_batched_diagonals_over_positive_and_negative_dims(dims, offset):
    run_all(
        [
            lambda x: torch.diagonal(x, offset, *dims) * 2,
            lambda x: torch.diagonal_copy(x, offset, *dims),
            lambda x: torch.linalg.diagonal(x, offset=offset, dim1=dims[0], dim2=dims[1]) * 2,
        ],
        BATCHED,
    )


@pytest.mark.parametrize("dims", [(0, 1), (-2, -1), (0, -1), (1, 0)])
@pytest.mark.parametrize("offset", [-2, 0, 1])
def test_diag_embed_over_dims_and_offsets(dims, offset):
    run_all([lambda x: torch.diag_embed(x, offset, *dims)], [(3,), (2, 3), (0,)])


@pytest.mark.parametrize("offset", [-1, 0, 2])
def test_diagonal_scatter_writes_only_the_diagonal(offset):
    run_all(
        [
            lambda x: torch.diagonal_scatter(x, x.diagonal(offset) * 3 + 1, offset),
            lambda x: torch.diagonal_scatter(x, torch.zeros_like(x.diagonal(offset)), offset),
        ],
        [(4, 4), (3, 5), (5, 3)],
    )


@pytest.mark.parametrize("offset", OFFSETS)
def test_tril_and_triu_at_every_offset(offset):
    run_all([lambda x: torch.tril(x, offset), lambda x: torch.triu(x, offset)], (*SHAPES, *BATCHED))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16])
def test_diagonals_of_other_dtypes(dtype):
    def program(device):
        x = data(3, 4, dtype=dtype, device=device)
        v = data(3, dtype=dtype, device=device)
        results = [torch.diag(x), torch.diag(v, 1), torch.tril(x), torch.triu(x, 1), torch.diag_embed(v), x.diagonal()]
        yield

    both(program, schedules=("lazy",))


@pytest.mark.parametrize(
    "shape, wrap", [((4, 4), False), ((7, 3), False), ((7, 3), True), ((3, 7), True), ((3, 3, 3), False)]
)
def test_fill_diagonal_in_place_with_and_without_wrap(shape, wrap):
    def program(device):
        a = data(*shape, device=device)
        flat = a.view(-1)
        a.fill_diagonal_(9, wrap=wrap)
        yield
        a.add_(1)
        a.fill_diagonal_(-1.5)
        yield

    both(program)


def test_trace_of_square_and_oblong_matrices():
    run_all([torch.trace], [(4, 4), (3, 5), (5, 3), (1, 1)])


def test_block_diag_of_mixed_shapes_and_its_gradient():
    def program(device):
        blocks = [
            normal(*s, seed=i, device=device).requires_grad_() for i, s in enumerate([(2, 3), (1, 1), (4,), (3, 2)])
        ]
        joined = torch.block_diag(*blocks)
        (joined * normal(*joined.shape, seed=9, device=device)).sum().backward()
        yield

    both(program, schedules=("lazy",))


def test_writes_through_a_diagonal_view_reach_the_matrix():
    def program(device):
        a = data(4, 5, device=device)
        d, e = a.diagonal(), a.diagonal(1)
        d.fill_(1)
        yield
        e.copy_(torch.arange(4.0, device=device))
        yield
        a.t().diagonal(-2).add_(10)
        d.mul_(e)
        yield

    both(program)


def test_diagonal_of_a_pending_matrix_is_not_zero():
    def program(device):
        x = normal(3, 3, device=device)
        product = (x @ x.t()).diagonal()
        scaled = torch.diag(torch.diag(x) * 2)
        back = torch.diag(torch.diag(x, 1), 1)
        yield

    both(program)


def test_bad_offsets_and_dims_get_the_error_of_the_cpu():
    same_error(lambda x: x.diagonal(0, 1, 1), lambda d: torch.zeros(3, 3, device=d))
    same_error(lambda x: x.diagonal(0, 0, 3), lambda d: torch.zeros(3, 3, device=d))
    same_error(torch.trace, lambda d: torch.zeros(3, device=d))
    same_error(torch.diag, lambda d: torch.zeros(2, 2, 2, device=d))
    same_error(lambda x: x.fill_diagonal_(1), lambda d: torch.zeros(3, device=d))
    same_error(lambda x: x.diagonal_scatter(torch.zeros(2, device=x.device)), lambda d: torch.zeros(3, 3, device=d))
