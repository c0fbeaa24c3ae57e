"""Where ATen's kernels for the CPU are wrong, or depend on where a result goes: the device has what is right, in every
mode. docs/differences.md lists them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.differential import DEVICE, ON_TINY, normal

pytestmark = pytest.mark.skipif(not ON_TINY, reason="the CPU is wrong")


@pytest.fixture(params=("never", "auto", "always"), autouse=True)
def mode(request):
    with torch.tiny.compile_mode(request.param):
        yield


PRODUCTS = {
    "mm": (lambda x: torch.mm(x, x), lambda x: torch.mm(x, x, out=x)),
    "matmul": (lambda x: torch.matmul(x, x), lambda x: torch.matmul(x, x, out=x)),
    "mm of its transpose": (lambda x: torch.mm(x.t(), x), lambda x: torch.mm(x.t(), x, out=x)),
    "addmm": (lambda x: torch.addmm(x, x, x), lambda x: torch.addmm(x, x, x, out=x)),
    "addmm_": (lambda x: torch.addmm(x, x, x), lambda x: x.addmm_(x, x)),
    "bmm": (lambda x: torch.bmm(x[None], x[None])[0], lambda x: torch.bmm(x[None], x[None], out=x[None])[0]),
    "halves that change places": (
        lambda x: torch.cat([x[:, 2:], x[:, :2]], 1),
        lambda x: torch.cat([x[:, 2:], x[:, :2]], 1, out=x),
    ),
    "part": (lambda x: torch.mm(x[:2], x)[0], lambda x: torch.mm(x[:2], x, out=x[1:])[0]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_what_is_written_over_its_arguments_reads_them_first(name):
    apart, over = PRODUCTS[name]
    values = normal(3, 3)
    want, x = apart(values), values.to(DEVICE)
    torch.testing.assert_close(over(x).cpu(), want)


OUTS = {
    "gelu": lambda x, **out: torch._C._nn.gelu(x, **out),
    "avg_pool3d": lambda x, **out: torch._C._nn.avg_pool3d(x, 2, **out),
    "narrow_copy": lambda x, **out: torch.narrow_copy(x, 2, 1, 2, **out),
}


@pytest.mark.parametrize("name", OUTS)
def test_results_go_where_the_strides_of_out_say(name):
    values = normal(2, 3, 4, 4, 4)
    want = OUTS[name](values)
    around = torch.ones((*want.shape, 2), device=DEVICE)
    out = around[..., 0]
    OUTS[name](values.to(DEVICE), out=out)
    torch.testing.assert_close(out.cpu(), want)
    assert torch.equal(around[..., 1].cpu(), torch.ones(want.shape))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_exponentials_of_matrices_in_half_types_are_numbers(dtype):
    values = normal(4, 4).to(dtype)
    found = torch.matrix_exp(values.to(DEVICE)).cpu()
    assert torch.equal(found, torch.matrix_exp(values.float()).to(dtype)) or torch.allclose(
        found.float(), torch.matrix_exp(values.float()), rtol=2 * torch.finfo(dtype).eps
    )


def test_small_losses_are_not_rounded_away():
    x, y = torch.tensor([17.0, 20.0, 30.0]), torch.ones(3)
    found = F.soft_margin_loss(x.to(DEVICE), y.to(DEVICE), reduction="none").cpu()
    torch.testing.assert_close(found, torch.log1p(torch.exp(-x)), rtol=1e-6, atol=0)
    small = torch.tensor([1e-9, 1e-12, 1e-30])
    found = F.binary_cross_entropy(small.to(DEVICE), torch.zeros(3, device=DEVICE), reduction="none").cpu()
    torch.testing.assert_close(found, small, rtol=1e-6, atol=0)
