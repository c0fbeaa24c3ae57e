"""Long sums and products are as exact as the CPU's, however their elements lie; sums of all digits are the oracle."""

from __future__ import annotations

import pytest
import torch

from torch_tinygrad.target import target

COUNT = 10**6
LAYOUTS = {
    "whole": lambda x: (x, None),
    "the first dimension": lambda x: (x.view(-1, 10), 0),
    "the last dimension": lambda x: (x.view(10, -1), 1),
    "a dimension between": lambda x: (x.view(10, -1, 10), 1),
    "transposed": lambda x: (x.view(100, -1).t(), 0),
    "every other": lambda x: (x[::2], None),
}
SUMS = {
    "sum": lambda x, dim: x.sum(dim),
    "mean": lambda x, dim: x.mean(dim),
    "var": lambda x, dim: x.var(dim),
    "norm": lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
    "logsumexp": lambda x, dim: x.logsumexp(0 if dim is None else dim),
    "prod": lambda x, dim: (
        (1 + (x - 0.5) * 2.0**-10).reshape(-1).prod() if dim is None else (1 + (x - 0.5) * 2.0**-10).prod(dim)
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SUMS)
def test_is_as_exact_as_on_the_cpu(name: str, layout: str) -> None:
    # sixteen binary digits, so that what is multiplied is exact
    numbers = torch.randint(2**13, (COUNT,), generator=torch.Generator().manual_seed(0)) / 2**13
    x, dim = LAYOUTS[layout](numbers)
    exact = SUMS[name](x.double(), dim)
    with torch.tiny.compile_mode("always"):
        found = SUMS[name](x.to("tiny"), dim).cpu()
    if target().regroups:
        pytest.skip("sums in two parts have no more digits there: docs/devices.md")
    errors = [((t.double() - exact) / exact).abs().max().item() for t in (found, SUMS[name](x, dim))]
    # a result that is rounded once, of a mean that is, is as good as any
    assert errors[0] <= max(errors[1], 2.0**-23), errors
