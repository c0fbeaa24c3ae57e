"""Special functions where they are hard: near zero, at the borders of their approximations, near poles, far out."""

from __future__ import annotations

import pytest
import torch

from tests.accuracy import worst
from tests.differential import both
from tests.exact_functions import FUNCTIONS
from torch_tinygrad.conformance.compare import FORWARD


def test_trigamma_near_a_far_pole_rounds_as_on_the_cpu():
    rtol, atol = FORWARD[torch.float32]
    both(lambda d: torch.polygamma(1, torch.tensor([-8.95, -0.97, 0.3, 2.0], device=d)), rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "name",
    [
        "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_k0", "modified_bessel_k1",
        "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "spherical_bessel_j0",
    ],
)  # fmt: skip
def test_bessel_functions_near_zero_at_their_borders_and_far(name, dtype):
    rtol, atol = FORWARD[dtype]
    inf, nan = float("inf"), float("nan")
    points = [
        0.0,
        -0.0,
        1e-30,
        0.3,
        1.999,
        2.0,
        2.001,
        4.999,
        5.0,
        5.001,
        40.0,
        700.0,
        -0.3,
        -3.0,
        -9.0,
        inf,
        -inf,
        nan,
    ]
    function = getattr(torch.special, name)
    if name in FUNCTIONS:  # the CPU's have seven digits from where waves begin on
        exact = FUNCTIONS[name]
        above = torch.tensor([p for p in points if 0 < p < inf], dtype=dtype)
        with torch.tiny.compile_mode("always"):
            error, place = worst(function, exact.exactly, above, precision=400, least=exact.least)
        assert error <= 2.0, f"{error} off at {place}"
        points = [p for p in points if not 0 < p < inf]
    both(lambda d: function(torch.tensor(points, dtype=dtype, device=d)), rtol=rtol, atol=atol)
