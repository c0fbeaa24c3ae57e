"""Sliding blocks put back together: windows that overlap, skip places, reach over the edge or leave a rest."""

from __future__ import annotations

import itertools

import pytest
from torch.nn import functional as F

from tests.differential import SCHEDULES, both, data

KERNELS = ((3, 3), (2, 4), (1, 1), (11, 2))
STRIDES = ((1, 1), (2, 2), (3, 1), (5, 2))


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("stride", STRIDES, ids=str)
def test_fold(kernel, stride):
    def program(device):
        for size, padding, dilation in itertools.product(((5, 7), (8, 8), (2, 2)), ((0, 0), (2, 1)), ((1, 1), (2, 1))):
            ends = zip(size, padding, dilation, kernel, stride, strict=True)
            counts = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in ends]
            if min(counts) > 0:
                columns = data(2, 3 * kernel[0] * kernel[1], counts[0] * counts[1], device=device).requires_grad_()
                # The CPU leaves its results in storages as large as its arguments: compared is what is computed from
                # them.
                weighted = F.fold(columns, size, kernel, dilation, padding, stride) * data(2, 3, *size, device=device)
                weighted.sum().backward()
                gradient = columns.grad * 2
                del columns
                yield weighted, gradient

    both(program, schedules=SCHEDULES[:1])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("step", [1, 2, 3, 12])
def test_gradient_of_unfold(size, step):
    def program(device):
        x = data(4, 11, device=device).requires_grad_()
        windows = x.unfold(1, size, step)
        (windows * data(*windows.shape, seed=1, device=device)).sum().backward()
        yield x.grad

    both(program, schedules=SCHEDULES[:1])
