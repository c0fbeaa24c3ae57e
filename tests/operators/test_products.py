"""Matrix products: by oneDNN where it is the faster library (csrc/programs/products.cpp), small ones by its blocks
(small_products.cpp), in any layout; what is added to them is added by the kernels that read the sum
(trace/addends.py)."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.differential import Cost, both, normal
from torch_tinygrad import _C
from torch_tinygrad.choice import is_host
from torch_tinygrad.engine.host import by_onednn
from torch_tinygrad.trace.addends import without_addends
from torch_tinygrad.trace.decisions import Decisions, deciding
from torch_tinygrad.trace.geometry import strides_of
from torch_tinygrad.trace.nodes import Node, Number, Region, Storage, Trace
from torch_tinygrad.values.steps import AtenStep, Operand

on_host = pytest.mark.skipif(not is_host(), reason="about libraries on the host")


def layouts(*size: int, seed: int) -> dict[str, torch.Tensor]:
    """The same values in rows, in columns, in part of a larger matrix, and with gaps."""
    *batch, rows, columns = size
    values = normal(*size, seed=seed)
    wide, gaps = torch.zeros(*batch, rows + 2, columns + 3), torch.zeros(*batch, rows, 2 * columns)
    wide[..., 1:-1, 2:-1] = values
    gaps[..., ::2] = values
    return {
        "rows": values,
        "columns": values.mT.contiguous().mT,
        "part": wide[..., 1:-1, 2:-1],
        "gaps": gaps[..., ::2],
    }


@pytest.mark.parametrize("size", [(1, 1, 1), (1, 384, 1152), (1, 1536, 384), (5, 7, 3), (64, 300, 1), (33, 64, 129)])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
def test_onednn_multiplies_in_every_layout(size, batch):
    rows, inner, columns = size
    multiply = (torch.ops.tiny.bmm if batch else torch.ops.tiny.mm).out
    for a in layouts(*batch, rows, inner, seed=1).values():
        for b in layouts(*batch, inner, columns, seed=2).values():
            for out in layouts(*batch, rows, columns, seed=3).values():
                multiply(a, b, out=out.fill_(float("nan")))
                torch.testing.assert_close(out, a.contiguous() @ b.contiguous(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "size", [(1, 1, 1), (3, 9, 40), (4, 1, 4), (17, 33, 18), (40, 64, 16), (64, 128, 192), (70, 3, 260)]
)
def test_blocks_multiply_in_every_layout(size):
    rows, inner, columns = size
    for a in layouts(rows, inner, seed=1).values():
        for b in layouts(inner, columns, seed=2).values():
            for out in layouts(rows, columns, seed=3).values():
                torch.ops.tiny.small_mm.out(a, b, out=out.fill_(float("nan")))
                torch.testing.assert_close(out, a.contiguous() @ b.contiguous(), rtol=1e-4, atol=1e-4)


def test_blocks_are_shared_out_to_threads():
    a, b, out = normal(300, 256, seed=1), normal(256, 70, seed=2), torch.full((300, 70), float("nan"))
    before = torch.get_num_threads()
    try:
        for threads in (2, 3, 7):
            torch.set_num_threads(threads)
            torch.ops.tiny.small_mm.out(a, b, out=out.fill_(float("nan")))
            torch.testing.assert_close(out, a @ b, rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)


def test_empty_products_by_blocks():
    for rows, inner, columns in ((0, 5, 6), (5, 0, 6), (5, 6, 0)):
        out = torch.full((rows, columns), float("nan"))
        torch.ops.tiny.small_mm.out(torch.ones(rows, inner), torch.ones(inner, columns), out=out)
        assert (out == 0).all()


def test_more_shapes_than_blocks_are_kept_for():
    for inner in range(1, 1100):
        a, b, out = torch.ones(4, inner), torch.ones(inner, 4), torch.empty(4, 4)
        torch.ops.tiny.small_mm.out(a, b, out=out)
        assert (out == inner).all()


@on_host
@pytest.mark.skipif(not _C.multiplies_small_by_blocks(), reason="MKL is as fast on this processor")
def test_which_products_are_made_of_blocks():
    def of(rows, inner, columns, dtype=torch.float32):
        operands = [Operand(s, dtype, strides_of(s), 0) for s in ((rows, inner), (inner, columns), (rows, columns))]
        return by_onednn(
            AtenStep("aten::mm", (None, None), ((0,), (1,)), (operands[0], operands[1]), (operands[2],), False)
        )

    assert of(32, 64, 64) == torch.ops.tiny.small_mm.out
    assert of(512, 512, 512) == torch.ops.tiny.mm.out
    assert of(32, 64, 64, torch.float64) is None
    with deciding(Decisions()):  # a program for many sizes
        assert of(32, 64, 64) is None


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_a_small_network_trains_with_blocks(momentum):
    def program(device):
        torch.manual_seed(0)
        layers = nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
        model = nn.Sequential(*layers).to(device)
        x, y = normal(32, 32, seed=1, device=device), (torch.arange(32) % 4).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        for _ in range(6):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            yield loss, [p.detach().clone() for p in model.parameters()]

    both(program, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("multiply", [torch.ops.tiny.mm.out, torch.ops.tiny.small_mm.out], ids=["whole", "blocks"])
def test_onednn_multiplies_repeated_and_overlapping_rows(multiply):
    values, b = normal(300, seed=1), normal(16, 40, seed=2)
    for a in (values[:16].expand(8, 16), values.as_strided((8, 16), (1, 1)), values.as_strided((8, 16), (3, 2))):
        out = torch.empty(8, 40)
        multiply(a, b, out=out)
        torch.testing.assert_close(out, a.contiguous() @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("multiply", [torch.ops.tiny.mm.out, torch.ops.tiny.small_mm.out], ids=["whole", "blocks"])
def test_onednn_multiplies_at_random(multiply):
    draw = random.Random(0)
    for _ in range(150):
        rows, inner, columns = (draw.choice(s) for s in ((1, 2, 5, 17, 64), (3, 64, 300, 1536, 4096), (1, 8, 100, 384)))
        a = draw.choice(list(layouts(rows, inner, seed=rows).values()))
        b = draw.choice(list(layouts(inner, columns, seed=columns).values()))
        out = torch.empty(rows, columns)
        multiply(a, b, out=out)
        want = a.double() @ b.double()
        torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-5 * inner)


@pytest.mark.parametrize("multiply", [torch.ops.tiny.mm.out, torch.ops.tiny.small_mm.out], ids=["whole", "blocks"])
def test_without_onednn_atens_product_is_taken(multiply):
    a, b, out = normal(40, 50, seed=1), normal(50, 60, seed=2), torch.empty(40, 60)
    with torch.backends.mkldnn.flags(enabled=False):
        multiply(a, b, out=out)
    torch.testing.assert_close(out, a @ b)


@pytest.mark.parametrize("shape", [(1, 1536), (1, 1, 1536), (7, 1536), (2, 3, 1536)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_rows_by_large_weights(shape, has_bias):
    """A step of decoding. With a sum inside oneDNN's product, the first of these crashed."""

    def program(device):
        x, weight = normal(*shape, seed=1, device=device), normal(384, 1536, seed=2, device=device)
        return F.linear(x, weight, normal(384, seed=3, device=device) if has_bias else None)

    both(program, rtol=1e-4, atol=1e-3)


def test_a_library_computes_products_alone():
    sizes = ((8,), (4, 6), (6, 8), (4, 8))

    def split(beta, alpha, is_library=True, dtype=torch.float32):
        *inputs, out = (Region(i, dtype, size, strides_of(size), 0) for i, size in enumerate(sizes))
        node = Node("aten::addmm", (*inputs, Number(beta), Number(alpha)), (out,), 0)
        trace = Trace([node], [Storage(1024, True, True) for _ in sizes], [])
        return [n.op for n in without_addends(trace, lambda node: is_library).nodes]

    assert split(1, 1) == ["aten::mm", "aten::add.Tensor"]
    assert split(1, 2) == split(0, 1) == split(1, 1, is_library=False) == ["aten::addmm"]
    assert split(1, 1, dtype=torch.bfloat16) == ["aten::addmm"]


@on_host
def test_a_bias_and_what_follows_are_one_kernel():
    x, weight = normal(128, 256, seed=1, device="tiny"), normal(256, 256, seed=2, device="tiny")
    bias = normal(256, seed=3, device="tiny")
    with Cost() as cost:
        kept = F.gelu(F.linear(x, weight, bias)) + x
        torch.tiny.synchronize()
    cost.expect(kernels=2)
    assert kept.isfinite().all()


@pytest.mark.parametrize("factors", [(1, 1), (0.5, 1), (1, 2), (0, 1), (1, 0), (0, 0)])
def test_scaled_sums(factors):
    beta, alpha = factors

    def program(device):
        addend, a, b = (normal(*s, seed=i, device=device) for i, s in enumerate([(48,), (40, 64), (64, 48)]))
        flat = torch.addmm(addend, a, b, beta=beta, alpha=alpha)
        batch = torch.baddbmm(addend, a.expand(3, 40, 64), b.expand(3, 64, 48), beta=beta, alpha=alpha)
        unknown = torch.full((40, 48), float("nan"), device=device)
        return flat, batch, torch.addmm(unknown, a, b, beta=0, alpha=alpha)

    both(program, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.complex64))
@pytest.mark.parametrize("alpha", (0, 0.0, 2))
def test_a_product_times_zero_is_not_looked_at(dtype, alpha):
    def program(device):
        factor = torch.full((3, 3), float("nan"), dtype=dtype, device=device)
        plain = torch.ones(3, 3, dtype=dtype, device=device)
        yield torch.addmm(plain, factor, plain, alpha=alpha), torch.addmm(plain, factor, plain, alpha=alpha, beta=0)
        yield torch.addbmm(plain, factor[None], plain[None], alpha=alpha)
        if not dtype.is_complex:
            yield torch.addmv(plain[0], factor, plain[0], alpha=alpha)

    both(program)
