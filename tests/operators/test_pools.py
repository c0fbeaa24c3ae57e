"""Maxima of windows and where they are: at edges, of nothing but -inf, of nan, of equal values, with channels last."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from tests.differential import SCHEDULES, both, data

POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def values(dtype: torch.dtype, device: str) -> torch.Tensor:
    x = data(2, 3, 9, 11, dtype=dtype)
    if dtype.is_floating_point:
        x[0, 0, 3, 4] = x[0, 2, 8, 10] = math.nan
        x[1, 2, :, 5] = x[1, 1] = -math.inf
    return torch.empty_like(x, device=device).copy_(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_max_pool(kernel, layout, dtype):
    def program(device):
        x = values(dtype, device).to(memory_format=layout)
        for stride, padding, dilation, ceil in itertools.product((1, 2, 3), (0, 1), (1, 2), (False, True)):
            yield F.max_pool2d(x, kernel, stride, padding, dilation, ceil, return_indices=True)

    both(program, schedules=SCHEDULES[:1])


@pytest.mark.parametrize("rank", POOLS)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_gradients(rank, stride):
    def program(device):
        x = data(2, 3, *(7, 6, 5)[:rank], device=device).requires_grad_()
        for kernel, padding in itertools.product((2, 3), (0, 1)):
            y = POOLS[rank](x, kernel, stride, padding)
            y.backward(data(*y.shape, seed=kernel, device=device))
            yield y, x.grad

    both(program, schedules=SCHEDULES[:1])
