"""Complex tensors: values, geometry, aliases of their parts, gradients, and what happens at the edges of the plane."""

from __future__ import annotations

import math

import pytest
import torch

from tests.differential import DEVICE, Cost, both, normal
from tests.processes import run

DTYPES = (torch.complex64, torch.complex128)


def number(*shape: int, dtype: torch.dtype = torch.complex64, seed: int = 0, device: str = "cpu") -> torch.Tensor:
    real = torch.float64 if dtype is torch.complex128 else torch.float32
    parts = [normal(*shape, dtype=real, seed=2 * seed + i) for i in range(2)]
    return torch.complex(*parts).to(device)


ARITHMETIC = {
    "add": lambda a, b: a + b,
    "add_scaled": lambda a, b: torch.add(a, b, alpha=2 - 1j),
    "sub": lambda a, b: a - 2 * b,
    "rsub": lambda a, b: (1 + 1j) - a,
    "mul": lambda a, b: a * b * 2 * (1 - 2j),
    "mul_real": lambda a, b: a * b.real + b.imag * a,
    "div": lambda a, b: a / b + 1 / b + a / 3 + a / (1j) + a / b.abs(),
    "neg": lambda a, b: -a,
    "square": lambda a, b: a.square() + a**3 + a**-1 + a**0.5 + a**0,
    "pow": lambda a, b: a**b + 2**b + a**1.5 + a ** (1 + 1j),
    "addcmul": lambda a, b: torch.addcmul(a, b, b, value=0.5) + torch.addcdiv(a, a, b, value=2),
    "lerp": lambda a, b: torch.lerp(a, b, 0.25) + torch.lerp(a, b, b),
    "abs": lambda a, b: a.abs() + b.angle(),
    "sgn": lambda a, b: a.sgn(),
    "conjugate": lambda a, b: (a.conj() + 1) * b.conj().clone() + b.conj().imag + a.conj().real,
    "of_parts": lambda a, b: torch.complex(a.real, b.imag) + torch.polar(a.abs(), b.angle()),
    "equality": lambda a, b: torch.stack([a == b, a != b, a == a, a == a.real]),
    "tests": lambda a, b: torch.stack([a.isnan(), a.isinf(), a.isfinite(), a.isreal(), ~a.bool(), a.logical_and(b)]),
    "where": lambda a, b: (
        torch.where(a.real > 0, a, b) + a.masked_fill(b.imag > 0, 1 - 1j) + torch.where(a.imag > 0, a, 2)
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name, dtype):
    def program(device):
        return ARITHMETIC[name](
            number(4, 5, dtype=dtype, device=device), number(4, 5, dtype=dtype, seed=1, device=device)
        )

    with Cost() as cost:
        both(program, schedules=("lazy",))
    cost.no_fallbacks()


FUNCTIONS = """exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh
acosh atanh sigmoid""".split()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementary_functions(name, dtype):
    """In all quadrants, on both sides of the unit circle, and on the axes."""

    def program(device):
        z = number(40, dtype=dtype)
        axes = torch.tensor([0.5, -0.5, 0.5j, -0.5j, 2, -2, 2j, -2j, 1e-3 + 1e-3j], dtype=dtype)
        return getattr(torch, name)(torch.cat([z, 0.1 * z, 5 * z, axes]).to(device))

    with Cost() as cost:
        both(program, schedules=("lazy",))
    cost.no_fallbacks()


def test_large_and_small_numbers_neither_overflow_nor_vanish():
    def program(device):
        z = torch.tensor([3e30 + 4e30j, 3e-30 - 4e-30j, 1e38 + 1e38j, 1e-38j, 0], device=device)
        return z.abs(), z / z.flip(0), torch.ones(5, device=device) / z[:4].sum(), z.log(), z.sqrt(), z.sgn()

    both(program, schedules=("lazy",))


REDUCTIONS = {
    "sum": lambda z: (z.sum(), z.sum(1), z.mean(0), z.trace()),
    "prod": lambda z: (z.prod(), z.prod(0), z.prod(1, keepdim=True)),
    "scan": lambda z: (z.cumsum(1), z.cumprod(0)),
    "truth": lambda z: (z.any(), z.all(1), z.count_nonzero()),
    "norm": lambda z: (z.norm(), torch.linalg.vector_norm(z, 1, dim=0), torch.linalg.vector_norm(z, math.inf)),
    "spread": lambda z: (z.var(), z.std(1), *torch.var_mean(z, 0)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    both(lambda device: REDUCTIONS[name](number(5, 7, device=device)), schedules=("lazy",))


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_products(dtype):
    def program(device):
        a, b = number(3, 4, dtype=dtype, device=device), number(4, 5, dtype=dtype, seed=1, device=device)
        batch, bias = (
            number(2, 4, 3, dtype=dtype, seed=2, device=device),
            number(3, 5, dtype=dtype, seed=3, device=device),
        )
        yield a @ b, a.conj() @ b, b.mH @ a.mH, a @ batch, batch @ a, batch.mH @ batch
        yield torch.addmm(bias, a, b, alpha=1 + 1j, beta=2), torch.addmm(bias, a, b, beta=0), a @ b[:, 0]
        yield (
            torch.dot(a[0], b[:, 0]),
            torch.vdot(a[0], b[:, 0]),
            torch.outer(a[0], b[0]),
            torch.einsum("ij,jk->k", a, b),
        )

    both(program, schedules=("lazy", "stepwise"))


def test_large_matrix_products_run_on_the_same_memory():
    def program(device):
        a, b = number(64, 64, device=device), number(64, 64, seed=1, device=device)
        return a @ b, a.conj().t() @ b + 1

    both(program, schedules=("lazy",), rtol=1e-4, atol=1e-4)


MOVEMENT = {
    "views": lambda z: (z.t() + 1, z[1:, ::2] * 2, z.expand(3, 4, 6) + 1, z.unfold(1, 3, 2).sum(-1), z.diagonal() * 1j),
    "joins": lambda z: (torch.cat([z, z * 2]), torch.stack([z, z.conj()]), torch.cat([z, z.real]), z.repeat(2, 1)),
    "moves": lambda z: (z.flip(0), z.roll(1, 1), z.tril(), z.triu(1), z[0].diag_embed(), z.rot90()),
    "pads": lambda z: (torch.nn.functional.pad(z, (1, 2), value=3), z.to(torch.complex128), z.real.to(z.dtype)),
    "copies": lambda z: (z.clone(), z.contiguous(), torch.zeros_like(z) + torch.ones_like(z), torch.full_like(z, 2j)),
}


@pytest.mark.parametrize("name", MOVEMENT)
def test_movement(name):
    both(lambda device: MOVEMENT[name](number(4, 6, device=device)), schedules=("lazy",))


def test_indexing():
    def program(device):
        z, rows = number(4, 6, device=device), torch.tensor([2, 0], device=device)
        yield (
            z[rows],
            z.gather(0, rows.reshape(2, 1).expand(2, 6)),
            z.index_select(1, rows),
            z.take(rows),
            z[z.real > 0],
        )
        z[rows] = 1j
        z.index_add_(1, rows, number(4, 2, seed=3, device=device), alpha=2)
        z.scatter_(0, rows.reshape(1, 2), 2.0 - 1j)
        yield z.masked_scatter(z.imag > 0, number(24, seed=4, device=device))

    both(program)


def test_real_and_complex_views_share_memory():
    def program(device):
        z = number(3, 4, device=device)
        parts, row, im = torch.view_as_real(z), z[1], z.imag
        yield
        z *= 1j
        yield
        parts[..., 0] += 1
        yield
        im.fill_(2)
        yield
        row[::2] = 3 + 3j
        yield
        again = torch.view_as_complex(parts)
        again[:, 0] /= 1 + 1j
        yield
        z.real.copy_(z.imag)
        yield

    both(program)


@pytest.mark.parametrize("view", (torch.Tensor.conj, lambda z: z.conj().imag, lambda z: z.conj().t()))
def test_writes_through_conjugate_and_negative_views(view):
    values = {}
    for device in ("cpu", DEVICE):
        z = number(3, 4, device=device)
        view(z)[1] = 5
        view(z)[0] *= 2
        values[device] = z.cpu()
    assert values["cpu"].equal(values[DEVICE])


def test_in_place_and_out():
    def program(device):
        z, w = number(3, 4, device=device), number(3, 4, seed=1, device=device)
        z.mul_(w).add_(1j).conj_physical_()
        out, size = torch.empty_like(z), torch.empty(3, 4, device=device)
        torch.exp(z, out=out)
        torch.abs(w, out=size)
        z.t()[0].neg_()
        w.fill_(1 - 2j)
        yield

    both(program)


GRADIENTS = {
    "product": lambda a, b: (a * b.conj()).sum().abs(),
    "quotient": lambda a, b: (a / b).real.sum() + (a / b).imag.square().sum(),
    "functions": lambda a, b: (a.exp() + b.sigmoid() + a.tanh() + a.sin()).abs().sum(),
    "logs": lambda a, b: (a.log() * b.sqrt()).real.sum() + a.angle().sum(),
    "power": lambda a, b: (a**2 + b**1.5).abs().sum(),
    "matrices": lambda a, b: (a @ b.mH).abs().square().sum(),
    "reductions": lambda a, b: (a.mean(0) * b.prod(0) * a.cumsum(1)).abs().sum(),
    "selection": lambda a, b: (torch.where(a.real > 0, a, b)[1:] * torch.cat([a, b])[:2]).abs().sum(),
    "parts": lambda a, b: (
        (torch.view_as_real(a) * torch.view_as_real(b)).sum() + torch.polar(a.abs(), b.angle()).real.sum()
    ),
    "norm": lambda a, b: torch.linalg.vector_norm(a - b) + a.norm(p=3),
    "fft": lambda a, b: (torch.fft.fft(a) * b).abs().sum() + torch.fft.irfft(a).square().sum(),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    def program(device):
        a, b = (number(3, 4, seed=s, device=device).requires_grad_() for s in range(2))
        loss = GRADIENTS[name](a, b)
        loss.backward()
        return loss, a, b

    both(program, schedules=("lazy",), rtol=1e-4, atol=1e-4)


def test_a_chain_of_operators_is_one_kernel():
    z, w = number(64, 64, device="tiny"), number(64, 64, seed=1, device="tiny")
    with Cost() as cost:
        kept = (z * w + 1j) / (w - 2) * z.conj()
        torch.tiny.synchronize()
    cost.expect(kernels=1)
    cost.no_fallbacks()
    assert kept.is_complex()


def test_what_is_dear_is_computed_once_for_both_parts():
    z, w = number(64, 64, device="tiny"), number(64, 64, seed=1, device="tiny")
    with Cost() as cost:
        kept = ((z * w + 1j) / (w - 2)).exp() * z.conj()
        torch.tiny.synchronize()
    cost.expect(kernels=2)  # the exponential, a length and an angle, is stored
    cost.no_fallbacks()
    assert kept.is_complex()


def test_rotation_of_pairs_as_in_language_models():
    def program(device):
        x, angles = normal(2, 5, 4, 8, device=device), normal(5, 4, seed=1, device=device)
        turns = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex(x.reshape(2, 5, 4, 4, 2))
        return torch.view_as_real(pairs * turns.view(1, 5, 1, 4)).flatten(3)

    both(program, schedules=("lazy",))


def test_training_with_a_complex_parameter():
    def program(device):
        w = number(4, 4, device=device).requires_grad_()
        x, y = number(8, 4, seed=1, device=device), number(8, 4, seed=2, device=device)
        optimizer = torch.optim.Adam([w], lr=0.05)
        for _ in range(4):
            optimizer.zero_grad()
            (x @ w - y).abs().square().mean().backward()
            optimizer.step()
        return w.detach().clone()

    both(program, schedules=("lazy",), rtol=1e-4, atol=1e-4)


def test_what_is_not_zero_is_true_though_its_real_part_is():
    def program(device):
        z = torch.tensor([0j, 1j, 2 + 0j, complex(0, math.nan)]).to(device)
        mask = torch.zeros(4, dtype=torch.bool, device=device)
        mask.copy_(z)
        other = torch.zeros(4, dtype=torch.bool, device=device)
        other[1:] = z[1:]
        return mask, other, z.bool(), torch.full((2,), 2j, device=device).bool()

    with torch.tiny.compile_mode("always"):
        both(program)


@pytest.mark.parametrize("exponent", [0, 1, 2, 0.5, -1, 1j, 1 + 1j, -1j])
def test_powers_of_zero_and_of_one(exponent):
    def program(device):
        z = torch.tensor([0j, 1 + 0j, 1j, complex(math.inf, 0)]).to(device)
        exponents = torch.full((4,), exponent, dtype=torch.complex64, device=device)
        return (z**exponents)[:3], (z**exponent)[:3], (exponent**z)[:3], 1**z

    with torch.tiny.compile_mode("always"):
        both(program)


def test_what_is_lowered_for_complex_numbers_alone_is_no_fallback():
    code = """
    import torch
    x = torch.fft.rfft(torch.arange(12.0, device="tiny"))
    print(abs(x[0].item() - 66) < 1e-3)
    """
    done = run(code, TORCH_TINY_FALLBACK="error")
    assert done.stdout.split() == ["True"], done.stderr[-2000:]
