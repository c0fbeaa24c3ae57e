"""Functions of every number of a half type: the result is the nearest of that type, as float64 has it. The CPU's own
half types are not the oracle here: their `erf` of small numbers is zero, their `sigmoid` of -89 too."""

from __future__ import annotations

import pytest
import torch

FUNCTIONS = (
    "erf erfc erfinv sin cos tan tanh sigmoid exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal "
    "atan asin acos sinh cosh asinh acosh atanh lgamma digamma square"
).split()
# What is computed in float32 first may lie so far from the middle between two numbers, in units between them, and be
# rounded to the other.
TIE = 2.0**-9


def unit(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance between numbers of a half type near x."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(x)
    return (info.eps * torch.ldexp(torch.ones_like(x), exponent - 1)).clamp(min=info.smallest_normal * info.eps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_is_the_nearest_number(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    exact = function(x.double())
    with torch.tiny.compile_mode("always"):
        found = function(x.to("tiny")).cpu()
    nearest = exact.to(dtype)
    differ = ~((found == nearest) | (found.isnan() & nearest.isnan()))
    off = (found[differ].double() - exact[differ]).abs() / unit(exact[differ], dtype)
    assert not (off > 0.5 + TIE).any() and not off.isnan().any(), (x[differ], found[differ], exact[differ])
