"""Linear algebra and iterated functions against the CPU: values, batches, singular matrices, gradients, and that none
of it runs on the CPU instead."""

from __future__ import annotations

import pytest
import torch

from tests.differential import DEVICE, ON_TINY, normal

SHAPES = [(1, 1), (2, 2), (3, 5, 5)]


def fallbacks() -> dict[str, int]:
    return dict(torch.tiny.stats()["fallbacks"]) if ON_TINY else {}


def agree(function, *tensors: torch.Tensor, **tolerance) -> None:
    """The function's results on both devices, with nothing computed on the CPU for the other."""
    before = fallbacks()
    expected, given = function(*tensors), function(*(t.to(DEVICE) for t in tensors))
    pairs = [(expected, given)] if isinstance(expected, torch.Tensor) else zip(expected, given, strict=True)
    for wanted, got in pairs:
        assert got.stride() == wanted.stride()
        torch.testing.assert_close(got.cpu(), wanted, equal_nan=True, **(tolerance or {"rtol": 1e-4, "atol": 1e-4}))
    assert fallbacks() == before


def matrices(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return normal(*shape, dtype=dtype, seed=seed) + 3 * torch.eye(shape[-2], shape[-1], dtype=dtype)


def positive(*shape: int) -> torch.Tensor:
    a = matrices(*shape)
    return a @ a.mT + torch.eye(shape[-1])


SQUARE = {
    "lu_factor": torch.linalg.lu_factor_ex,
    "lu": torch.linalg.lu,
    "det": torch.linalg.det,
    "slogdet": torch.linalg.slogdet,
    "inverse": torch.linalg.inv,
    "qr": torch.linalg.qr,
    "exponential": torch.linalg.matrix_exp,
    "solve": lambda a: torch.linalg.solve(a, a[..., :1] + 1),
    "solve transposed": lambda a: torch.linalg.solve(a.mT, a, left=False),
    "upper triangle": lambda a: torch.linalg.solve_triangular(a + torch.eye(a.shape[-1]).to(a), a, upper=True),
}


@pytest.mark.parametrize("name", SQUARE)
def test_square_matrices(name: str) -> None:
    for shape in SHAPES:
        agree(SQUARE[name], matrices(*shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_cholesky_and_what_is_made_from_it(shape: tuple[int, ...]) -> None:
    agree(torch.linalg.cholesky_ex, positive(*shape))
    agree(lambda a: torch.linalg.cholesky(a, upper=True), positive(*shape))
    agree(lambda a: torch.cholesky_solve(a[..., :2], torch.linalg.cholesky(a)), positive(*shape))
    agree(lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a)), positive(*shape))


@pytest.mark.parametrize("shape", [(4, 6), (2, 6, 4)])
def test_rectangular_factors(shape: tuple[int, ...]) -> None:
    agree(torch.linalg.lu_factor_ex, normal(*shape))
    agree(lambda a: torch.linalg.qr(a, mode="complete"), normal(*shape))
    agree(torch.geqrf, normal(*shape))


def test_double_precision_keeps_its_digits() -> None:
    a = matrices(3, 6, 6, dtype=torch.float64)
    for function in (torch.linalg.inv, torch.linalg.det, torch.linalg.qr, torch.linalg.matrix_exp):
        agree(function, a, rtol=1e-10, atol=1e-10)


def test_singular_matrices() -> None:
    a = torch.tensor([[0.0, 2, 4], [0, 1, 3], [0, 5, 7]])
    agree(torch.linalg.lu_factor_ex, a)
    agree(lambda m: torch.linalg.inv_ex(m).info, a)
    agree(lambda m: torch.linalg.cholesky_ex(m).info, torch.diag(torch.tensor([1.0, 4, -1, 2])))
    agree(torch.linalg.det, a)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.inv(a.to(DEVICE)).cpu()
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        torch.linalg.cholesky(-torch.eye(3, device=DEVICE)).cpu()


def test_large_matrices() -> None:
    agree(torch.linalg.inv, matrices(2, 48, 48), rtol=1e-3, atol=1e-3)
    agree(lambda a: torch.linalg.solve_triangular(a, a.mT, upper=False), matrices(40, 40).tril() + 9 * torch.eye(40))


GRADIENTS = {
    "det": torch.linalg.det,
    "inverse": torch.linalg.inv,
    "solve": lambda a: torch.linalg.solve(a, a[..., :2]),
    "cholesky": lambda a: torch.linalg.cholesky(a @ a.mT),
    "qr": lambda a: torch.linalg.qr(a)[1],
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    def gradient(a: torch.Tensor) -> torch.Tensor:
        a = a.detach().requires_grad_()
        return torch.autograd.grad(GRADIENTS[name](a).sum(), a)[0]

    agree(gradient, matrices(2, 4, 4), rtol=1e-3, atol=1e-3)


X, DEGREES = torch.linspace(-1.5, 1.5, 26), torch.arange(26.0) % 13 - 1
ITERATED = {
    "legendre": lambda x, n: torch.special.legendre_polynomial_p(x, n),
    "chebyshev": lambda x, n: torch.special.chebyshev_polynomial_u(x, n),
    "hermite": lambda x, n: torch.special.hermite_polynomial_he(x, n),
    "igamma": lambda x, n: torch.igamma(n.abs() + 0.5, x.abs() * 4),
    "igammac": lambda x, n: torch.igammac(n.abs() + 0.5, x.abs() * 4),
    "zeta": lambda x, n: torch.special.zeta(n.abs() + 2, x.abs() + 0.1),
    "airy": lambda x, n: torch.special.airy_ai(x * 6),
}


@pytest.mark.parametrize("name", ITERATED)
def test_iterated_functions(name: str) -> None:
    agree(ITERATED[name], X, DEGREES)


def test_segments_of_any_length() -> None:
    data, lengths = normal(7, 3), torch.tensor([2, 0, 4, 1])
    for reduce in ("sum", "mean", "max", "min", "prod"):
        agree(lambda d, n, how=reduce: torch.segment_reduce(d, how, lengths=n), data, lengths)


def test_histograms_and_grids() -> None:
    agree(lambda p: torch.histogram(p, 8), normal(50))
    agree(lambda p: torch.histogramdd(p, [3, 4]).hist, normal(50, 2))
    volume, grid = normal(1, 2, 3, 4, 5), normal(1, 2, 3, 2, 3).clamp(-1.2, 1.2)
    agree(lambda v, g: torch.nn.functional.grid_sample(v, g, align_corners=False), volume, grid)


def test_alignments_and_pairs() -> None:
    scores, targets = normal(6, 2, 4).log_softmax(-1), torch.tensor([[1, 2, 2], [3, 1, 0]])
    agree(lambda s, t: torch.nn.functional.ctc_loss(s, t, (6, 5), (3, 2), reduction="none"), scores, targets)
    agree(torch.nn.functional.pdist, normal(6, 3))


@pytest.mark.parametrize("shape", SHAPES)
def test_ldl_solve_lies_in_memory_as_on_the_cpu(shape: tuple[int, ...]) -> None:
    """The CPU's kernel, asked about stand-ins, writes wherever their pivots say: they are ones, as any matrix has."""
    a = matrices(*shape)
    b = normal(*shape, seed=1)

    def solve(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        factors, pivots = torch.linalg.ldl_factor(a + a.mT)
        out = torch.empty(0, device=a.device)
        return [torch.linalg.ldl_solve(factors, pivots, b), torch.linalg.ldl_solve(factors, pivots, b, out=out)]

    for want, got in zip(solve(a, b), solve(a.to(DEVICE), b.to(DEVICE)), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


def test_what_lstsq_resizes_is_a_part_of_a_larger_matrix_as_on_the_cpu() -> None:
    a, b = normal(3, 4, 3), normal(3, 4, 3, seed=1)

    def solve(device: str) -> torch.Tensor:
        outs = [
            torch.empty(0, dtype=t, device=device) for t in (torch.float32, torch.float32, torch.int64, torch.float32)
        ]
        return torch.linalg.lstsq(a.to(device), b.to(device), out=tuple(outs)).solution

    want, got = solve("cpu"), solve(DEVICE)
    assert (got.stride(), got.untyped_storage().nbytes()) == (want.stride(), want.untyped_storage().nbytes())
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ("cholesky_ex", "inv_ex", "lu_factor_ex"))
@pytest.mark.parametrize("mode", ("never", "always"))
def test_matrices_are_refused_where_the_caller_wants_it(name, mode):
    singular = torch.ones(3, 3, dtype=torch.float64)
    with torch.tiny.compile_mode(mode):
        for matrix in (singular, singular.expand(2, 3, 3), torch.zeros(3, 3)):
            with pytest.raises(RuntimeError) as want:
                getattr(torch.linalg, name)(matrix, check_errors=True)
            with pytest.raises(type(want.value)) as found:
                getattr(torch.linalg, name)(matrix.to("tiny"), check_errors=True)
            assert str(found.value) == str(want.value)
        getattr(torch.linalg, name)(torch.eye(3, device="tiny"), check_errors=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ("never", "always"))
def test_the_old_factorization_refuses_too(mode):
    with torch.tiny.compile_mode(mode), pytest.raises(torch.linalg.LinAlgError, match="^cholesky: The factorization"):
        torch.cholesky(torch.ones(3, 3, device="tiny"))
