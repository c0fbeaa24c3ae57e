"""Calls that were valid at other sizes are inferred without computing; their results and refusals stay the CPU's."""

import pytest
import torch
from torch import nn

from tests.differential import both, same_error

aten = torch.ops.aten


def operands(device, n):
    """Tensors whose sizes follow from one number, large enough not to be asked about on the CPU."""
    g = torch.Generator().manual_seed(n)
    return [torch.randn(*size, generator=g).to(device) for size in ((4, n, 64), (4, 64, n), (64,), (n, 64), (64, n))]


CALLS = {
    "pointwise": lambda b, c, v, m, k: [b * 2 + v, b.transpose(1, 2) * c, b > v, torch.where(b > 0, b, v), b.exp()],
    "pointwise of a view": lambda b, c, v, m, k: [
        b[:, 1:] + 1,
        b.permute(2, 0, 1) + 1,
        m.t() * 2,
        b.expand(3, *b.shape) * 1,
    ],
    "products": lambda b, c, v, m, k: [m @ k, k @ m, b.bmm(c), torch.addmm(v, m, k @ m), torch.baddbmm(c @ b, c, b)],
    "products of views": lambda b, c, v, m, k: [m.t() @ m, b.transpose(1, 2).bmm(b), m @ m.t()],
    "layer norm": lambda b, c, v, m, k: list(aten.native_layer_norm(b, [64], v, v, 1e-5)),
    "layer norm of two": lambda b, c, v, m, k: list(aten.native_layer_norm(b, list(b.shape[1:]), None, None, 1e-5)),
    "softmax": lambda b, c, v, m, k: [b.softmax(-1), b.softmax(1), b.log_softmax(2), m.t().softmax(0)],
    "embedding": lambda b, c, v, m, k: [nn.functional.embedding(torch.arange(40, device=m.device).view(8, 5) % 7, m)],
    "moved": lambda b, c, v, m, k: [b.roll(3, 1), b.roll((1, 2), (0, 2)), b.flip(1), m.t().flip(0), m.t().roll(1, 0)],
    "sums of views": lambda b, c, v, m, k: [
        c.transpose(1, 2).sum(1),
        b[:, ::2].mean(2),
        b.sum((0, 1, 2)),
        b.amin((0, 1)),
    ],
    "pools": lambda b, c, v, m, k: [
        *nn.functional.max_pool2d(b, 3, 2, 1, ceil_mode=True, return_indices=True),
        nn.functional.max_pool2d(b, (2, 3), dilation=(2, 1)),
        nn.functional.avg_pool2d(b, (3, 2), stride=3, padding=(1, 0)),
        nn.functional.avg_pool2d(c.transpose(1, 2), 2, ceil_mode=True),
        nn.functional.max_pool2d(b.view(2, 2, *b.shape[1:]), 4),
    ],
    "sums": lambda b, c, v, m, k: [b.sum(1), b.mean((0, 2), keepdim=True), b.amax(-1), b.std(1)],
}


@pytest.mark.parametrize("name", CALLS)
def test_results_of_new_sizes_are_the_cpus(name):
    def program(device):
        for n in (33, 40, 57):
            results = CALLS[name](*operands(device, n))
            yield results

    both(program, rtol=1e-4, atol=1e-4)


def test_gradients_of_new_sizes_are_the_cpus():
    def program(device):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).to(device)
        for length in (17, 23, 40):
            x = operands(device, length)[0][..., :32].contiguous().requires_grad_()
            layer.zero_grad()
            layer(x).square().mean().backward()
            yield [x.grad, *(p.grad for p in layer.parameters())]

    both(program, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("rows", (1, 40))
@pytest.mark.parametrize(
    "action",
    [
        lambda x: nn.functional.max_pool2d(x, 90),
        lambda x: nn.functional.max_pool2d(x, 3, padding=2),
        lambda x: nn.functional.max_pool2d(x, 3, stride=0),
        lambda x: nn.functional.avg_pool2d(x, (2, 2, 2)),
        lambda x: nn.functional.avg_pool2d(x[0, 0], 2),
    ],
)
def test_windows_that_do_not_fit_are_refused_after_others_that_did(action, rows):
    """In the CPU's words, for what is tried as it is and for what is larger."""

    def fitting(device):
        x = torch.ones(rows, 2, 70, 66, device=device)
        nn.functional.max_pool2d(x, 3), nn.functional.avg_pool2d(x, 2)
        return x

    same_error(action, fitting)


@pytest.mark.parametrize(
    "action",
    [
        lambda t: t[0] @ t[2],
        lambda t: t[0] + t[1],
        lambda t: torch.addmm(t[3], t[0], t[1].t()),
        lambda t: nn.functional.layer_norm(t[0], (63,)),
    ],
)
def test_sizes_that_do_not_fit_are_refused_after_others_that_did(action):
    def fitting(device):
        a, b = torch.ones(70, 64, device=device), torch.ones(70, 64, device=device)
        return [
            a @ b.t(),
            a + b,
            torch.addmm(torch.ones(70, device=device), a, b.t()),
            nn.functional.layer_norm(a, (64,)),
        ]

    fitting("tiny")
    sizes = ((90, 64), (80, 64), (65, 90), (81,))
    same_error(action, lambda device: [torch.ones(*size, device=device) for size in sizes])
