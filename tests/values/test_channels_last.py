"""Convolutions that run with channels last: nobody outside the program can tell."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

RANKS = {2: (nn.Conv2d, nn.BatchNorm2d, F.max_pool2d), 3: (nn.Conv3d, nn.BatchNorm3d, F.max_pool3d)}


class Network(nn.Module):
    """Strided, grouped and 1x1 convolutions, one of whose inputs several read."""

    def __init__(self, rank: int, inner: int):
        super().__init__()
        conv, norm, self.pool = RANKS[rank]
        self.first, self.norm1 = conv(inner, 16, 3, padding=1, bias=False), norm(16)
        self.strided, self.norm2 = conv(16, 32, 3, stride=2, padding=1, bias=False), norm(32)
        self.grouped, self.across = conv(32, 32, 3, padding=1, groups=4), conv(16, 32, 1, stride=2)

    def forward(self, x):
        first = F.relu(self.norm1(self.first(x)))
        second = F.relu(self.norm2(self.strided(first)))
        third = self.grouped(second) + self.across(first)
        return self.pool(third, 3, 2, 1), second


def sizes(rank: int) -> tuple[int, ...]:
    return (14, 14) if rank == 2 else (6, 8, 8)


@pytest.mark.parametrize("inner", [1, 3, 16])
@pytest.mark.parametrize("rank", [2, 3])
def test_values_and_gradients_are_the_cpus(rank, inner):
    torch.manual_seed(0)
    model, x = Network(rank, inner), torch.randn(8, inner, *sizes(rank))
    outcomes = []
    for device in ("cpu", "tiny"):
        own, images = copy.deepcopy(model).to(device), x.detach().to(device).requires_grad_()
        pooled, second = own(images)
        (pooled.square().sum() + second.mean()).backward()
        values = {"pooled": pooled, "second": second, "images": images.grad, **dict(own.named_buffers())}
        values |= {name: p.grad for name, p in own.named_parameters()}
        outcomes.append(values)
    for name, expected in outcomes[0].items():
        actual = outcomes[1][name]
        assert actual.stride() == expected.stride() or name not in ("pooled", "second", "images"), name
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("inner", [1, 16])
def test_activations_that_are_kept_lie_as_recorded(inner):
    """Views of results, of a convolution and of what follows it, see the recorded order of elements."""
    torch.manual_seed(0)
    weight, x = torch.randn(16, inner, 3, 3), torch.randn(8, inner, 12, 12)
    outcomes = []
    for device in ("cpu", "tiny"):
        y = F.conv2d(x.to(device) * 2, weight.to(device))
        z = F.relu(y)
        last = F.conv2d(z, weight.to(device)[:, :1].expand(-1, 16, -1, -1))
        outcomes.append([y.reshape(-1)[:50], z.as_strided((7, 5), (3, 11), 4), last, y.flatten(1).sum(1)])
    for expected, actual in zip(*outcomes, strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", [slice(None), slice(0, 4)])
def test_writes_between_convolutions_are_seen(part):
    torch.manual_seed(0)
    weight, x = torch.randn(16, 16, 3, 3), torch.randn(4, 16, 16, 16)
    outcomes = []
    for device in ("cpu", "tiny"):
        w = weight.to(device)
        y = F.conv2d(x.to(device), w, padding=1)
        z = F.conv2d(y, w, padding=1)
        y[part] *= 0.5
        y[:, 3] = 1.0
        outcomes.append(F.conv2d(y + z.sin(), w).sum((0, 2)) + F.conv2d(y, w).sum((0, 2)))
    torch.testing.assert_close(outcomes[1].cpu(), outcomes[0], rtol=1e-4, atol=1e-2)


def test_pools_find_the_last_nan_and_the_first_maximum():
    x = torch.randn(2, 8, 9, 9).round()
    x[0, 1, 2:5, 3] = torch.nan
    x[1, 2] = -torch.inf
    for kernel, padding, dilation in ((3, 1, 1), (2, 0, 2), (4, 2, 1)):
        expected = F.max_pool2d(x, kernel, 2, padding, dilation, return_indices=True)
        actual = F.max_pool2d(x.to("tiny"), kernel, 2, padding, dilation, return_indices=True)
        for e, a in zip(expected, actual, strict=True):
            torch.testing.assert_close(a.cpu(), e, rtol=0, atol=0, equal_nan=True)


POOLS = {
    "side_by_side": dict(kernel_size=2),
    "reaching_over_the_end": dict(kernel_size=(3, 2), ceil_mode=True),
    "overlapping": dict(kernel_size=3, stride=2, padding=1),
    "overlapping_over_the_end": dict(kernel_size=4, stride=(3, 2), padding=2, ceil_mode=True),
    "one_by_one": dict(kernel_size=3, stride=1, padding=1, dilation=2),
    "many_overlaps": dict(kernel_size=5, stride=1, padding=2),
    "with_gaps": dict(kernel_size=2, stride=3),
    "dilated": dict(kernel_size=3, stride=3, padding=1, dilation=3, ceil_mode=True),
}


@pytest.mark.parametrize("pool, size", [(F.max_pool2d, (2, 3, 12, 11)), (F.max_pool3d, (2, 2, 9, 10, 9))])
@pytest.mark.parametrize("name", POOLS)
def test_gradients_of_pools(name, pool, size):
    settings = POOLS[name]
    if pool is F.max_pool3d:
        settings = {k: max(v) if isinstance(v, tuple) else v for k, v in settings.items()}
    x = torch.randn(size, generator=torch.Generator().manual_seed(0)).round()
    grads = []
    for device in ("cpu", "tiny"):
        own = x.detach().to(device).requires_grad_()
        y = pool(own, **settings)
        y.backward(torch.arange(1.0, y.numel() + 1).reshape(y.shape).to(device))
        grads.append(own.grad.cpu())
    assert torch.equal(*grads)
