"""Operators, where one once differed from the CPU: each case as a user meets it."""

from __future__ import annotations

import math

import pytest
import torch

from tests.differential import both
from torch_tinygrad.conformance.compare import compare_results
from torch_tinygrad.engine import contractions

INF, NAN = math.inf, math.nan


def same(function, *arguments: torch.Tensor) -> None:
    """The function's results on both devices agree in values, dtypes, shapes and strides."""
    want = function(*(a.clone() for a in arguments))
    compare_results(want, function(*(a.to("tiny") for a in arguments)), "tiny")


def test_a_factor_of_zero_keeps_nan_and_infinity():
    x = torch.tensor([NAN, 1.0, INF, -INF, 0.0])
    same(lambda x: torch.add(x, x, alpha=0), x)
    same(lambda x: torch.sub(x, x, alpha=0.0), x)
    same(lambda x: torch.addcmul(x, x, x, value=0), x)
    same(lambda x: torch.addcdiv(x, x, x, value=0), x)
    same(lambda x: torch.addr(x, x, x, beta=0, alpha=0), x)
    same(lambda x: (x * 0.0, x * -0.0, x - x, (x + 1) - (x + 1)), x)


def test_comparisons_with_nan():
    def program(x, y):
        least, most = x < y, x > y
        compared = (x == y, x != y, least, most, x <= y, x >= y, ~least, ~most, least.logical_not() & (x != 0))
        return (*compared, x.bool(), x.count_nonzero(), x.any(), torch.where(x != 0, x, 0.0), x.isnan(), ~(x >= y))

    same(program, torch.tensor([NAN, 1.0, INF, NAN, -0.0, 2.0]), torch.tensor([1.0, NAN, INF, NAN, 0.0, 3.0]))
    same(lambda x: (x != 0, x == 0, ~(x < 1), ~(x > 1), ~(x <= 1), x.logical_not()), torch.tensor([NAN, 1.0, 0.0]))


def test_the_largest_and_the_least_of_numbers_with_nan_are_nan():
    x = torch.tensor([[2.0, NAN, INF, -INF], [NAN, 1.0, -0.0, 3.0], [4.0, 1.0, INF, 3.0]])
    same(lambda x: (x.max(), x.min(), x.amax(1), x.amin(0), x.argmax(1), x.argmin(0), x.max(1).values), x)
    same(lambda x: (x.sort(1).values, x.cummax(1).values, x.topk(2).values, x.median(1).values), x)


def test_as_strided_scatter_writes_where_the_storage_says():
    def program(x):
        view = x.view(4, 2)[:, 1]
        return torch.as_strided_scatter(view, torch.ones((), device=x.device), (), (), 0), torch.as_strided_scatter(
            view, torch.ones(2, device=x.device), (2,), (4,), 1
        )

    same(program, torch.arange(8.0))


def test_running_extremes_into_given_tensors():
    def program(x):
        out = torch.empty(0, device=x.device), torch.empty(0, dtype=torch.int64, device=x.device)
        return torch.cummax(x, 0, out=out), torch.cummin(x, 0)

    same(program, torch.tensor([[1.0, 5.0], [3.0, NAN], [3.0, 2.0]]))


def test_factorisations_of_strided_matrices_look_at_their_values():
    same(lambda x: torch.cholesky(x[::2, ::2]), 9 * torch.eye(6))


def test_kronecker_product_of_strided_matrices():
    same(lambda a, b: torch.kron(a[:, 1::2], b[1::2]), torch.randn(3, 4), torch.randn(4, 5))


def test_selecting_into_memory_that_is_read_is_refused():
    def overlap(x):
        out = x[1:3]
        with pytest.raises(RuntimeError, match="refer to a single memory location") as refused:
            torch.masked_select(x, x > 2, out=out)
        return str(refused.value)

    same(overlap, torch.arange(6.0))
    same(lambda x: torch.masked_select(x, x > 2, out=x.new_empty(0)), torch.arange(6.0))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.5, INF])
def test_gradients_of_distances_are_zero_where_rows_meet(p: float):
    def program(a, b):
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        distance = torch.cdist(a, b, p=p, compute_mode="donot_use_mm_for_euclid_dist")
        return distance.detach(), torch.autograd.grad(distance.square().sum(), (a, b))

    a = torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]])
    same(program, a, torch.cat([a[:1], a[1:] + 1, a.flip(0)]))


@pytest.mark.parametrize("length", [60, 67])  # one that splits, and a prime that becomes a convolution
def test_long_fourier_transforms_where_no_library_helps(length: int, monkeypatch):
    monkeypatch.setattr(contractions, "prefers_aten", lambda node: False)
    same(lambda x: (torch.fft.rfft(x), torch.fft.irfft(torch.fft.rfft(x), n=length)), torch.randn(2, length))
    assert not any("fft" in name for name in torch.tiny.stats()["fallbacks"])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
def test_common_divisors_and_multiples_wrap_as_on_the_cpu(dtype: torch.dtype):
    ends = torch.iinfo(dtype)
    lowest = ends.min if dtype is torch.int8 else ends.min + 1
    a = torch.tensor([0, 6, 12, 97, ends.max, lowest, lowest, 100], dtype=dtype)
    b = torch.tensor([0, 4, 0, 89, ends.max - 1, 6, 0, 6], dtype=dtype)
    same(torch.gcd, a, b)
    same(torch.lcm, a[:5], b[:5]) if dtype is not torch.int64 else same(torch.lcm, a[:4], b[:4])


def test_factors_of_integer_products_lose_their_fraction():
    m, v = torch.arange(9).reshape(3, 3), torch.arange(3)
    same(lambda m, v: torch.addmv(v, m, v, beta=2.6, alpha=-1.7), m, v)
    same(lambda m: torch.addmm(m, m, m, beta=0.6, alpha=1.7), m)
    same(lambda m: torch.baddbmm(m[None], m[None], m[None], beta=0.6, alpha=1.7), m)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_operator_rounds_half_types(dtype: torch.dtype):
    a, b = (9 * torch.randn(40, 3, generator=torch.Generator().manual_seed(s)).to(dtype) for s in (0, 1))

    def exactly(function) -> None:
        assert torch.equal(function(a.to("tiny"), b.to("tiny")).cpu(), function(a, b))

    exactly(lambda a, b: a * b - b * b)
    exactly(lambda a, b: torch.linalg.cross(a, b))
    exactly(lambda a, b: torch.div(a, b, rounding_mode="trunc"))
    exactly(lambda a, b: torch.addr(a, a[:, 0], b[0], beta=0.2, alpha=0.6))
    exactly(lambda a, b: a * 30000 / 30000)


@pytest.mark.parametrize("order", [0, 1, 2, 2.5])
def test_norms_of_nothing_are_zero(order: float):
    same(lambda x: torch.linalg.vector_norm(x, order, dim=0), torch.empty(0, 3, dtype=torch.float64))
    same(lambda x: torch.linalg.vector_norm(x, order, dim=0, keepdim=True), torch.empty(0, 0, dtype=torch.float64))


def test_segments_are_checked_by_their_lengths():
    def run(device):
        return torch.segment_reduce(
            torch.linspace(-1, 1, 6).to(device), "sum", lengths=torch.tensor([1, 2, 3], device=device), unsafe=False
        )

    both(run)


def test_nonzero_lies_in_memory_as_on_the_cpu():
    def run(device):
        x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device) > 0
        return x.nonzero(), torch.nonzero(x, out=torch.empty(0, dtype=torch.int64, device=device))

    both(run)
