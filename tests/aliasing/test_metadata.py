"""What tensors say of themselves without their values: strides, versions, addresses, in place too."""
# ruff: noqa: F841 - the differential helper compares the local variables of a program

from __future__ import annotations

import itertools

import pytest
import torch

from tests.differential import DEVICE, both, compare_metadata, data

INPLACE_VIEWS = {
    "t_": lambda t: t.t_(),
    "squeeze_": lambda t: t.unsqueeze(1).squeeze_(),
    "squeeze_dim_": lambda t: t.unsqueeze(1).squeeze_(1),
    "unsqueeze_": lambda t: t.unsqueeze_(0),
    "transpose_": lambda t: t.transpose_(0, 1),
    "swapaxes_": lambda t: t.swapaxes_(0, 1),
    "as_strided_": lambda t: t.as_strided_((2, 3), (3, 2), 1),
    "detach_": lambda t: t.detach_(),
}


@pytest.mark.parametrize("name", INPLACE_VIEWS)
def test_inplace_view_changes_geometry_and_keeps_aliases(name):
    def program(device):
        a = data(3, 4, device=device)
        b = a.view(-1)
        a.add_(1)
        c = INPLACE_VIEWS[name](a)
        yield
        c.mul_(2)
        yield
        b.sub_(3)
        yield

    both(program)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.empty_strided((2, 3, 4), (1, 8, 2), device=d),
        lambda d: torch.empty_like(torch.empty(2, 3, 4, device=d).permute(2, 0, 1)),
        lambda d: torch.empty_like(torch.empty(2, 3, 4, 5, device=d).to(memory_format=torch.channels_last)),
        lambda d: torch.empty_like(torch.empty(4, 6, device=d)[:, ::2]),
        lambda d: torch.empty_like(torch.empty(4, 1, device=d).expand(4, 3)),
        lambda d: torch.empty(2, 3, 4, 5, device=d, memory_format=torch.channels_last),
        lambda d: torch.empty(2, 3, 4, 5, 6, device=d, memory_format=torch.channels_last_3d),
        lambda d: torch.empty(2, 3, 4, device=d).permute(2, 0, 1).clone(),
        lambda d: torch.empty(2, 3, 4, device=d).permute(2, 0, 1).contiguous(),
        lambda d: torch.empty(0, 3, device=d),
        lambda d: torch.empty(2, 3, device=d).new_empty_strided((3, 2), (1, 3)),
    ],
)
def test_strides_of_new_tensors_match_without_values(make):
    compare_metadata(["made"], [make("cpu")], [make(DEVICE)], "factory")


@pytest.mark.parametrize(
    "operation",
    [
        lambda t: t + 1,
        lambda t: t * t.clone(),
        lambda t: t.contiguous() + t,
        lambda t: torch.where(t > 0, t, -t),
        lambda t: t.sum(0),
        lambda t: t.sum(1, keepdim=True),
        lambda t: torch.cat([t, t], 1),
        lambda t: torch.stack([t, t]),
        lambda t: t.to(torch.float64),
        lambda t: t.softmax(-1),
        lambda t: t.flip(0),
        lambda t: t.repeat(2, 1, 1),
        lambda t: t.clone(memory_format=torch.contiguous_format),
        lambda t: torch.matmul(t, t.mT),
    ],
)
@pytest.mark.parametrize("layout", ["contiguous", "permuted", "sliced", "expanded"])
def test_results_have_the_strides_of_the_cpu(operation, layout):
    def program(device):
        t = {
            "contiguous": lambda: data(2, 3, 4, device=device),
            "permuted": lambda: data(3, 4, 2, device=device).permute(2, 0, 1),
            "sliced": lambda: data(2, 3, 8, device=device)[..., ::2],
            "expanded": lambda: data(2, 3, 1, device=device).expand(2, 3, 4),
        }[layout]()
        result = operation(t)
        yield

    both(program, schedules=("lazy",))


def test_version_counters_advance_with_every_write_through_any_alias():
    def program(device):
        a = data(4, 4, device=device)
        v = a[1]
        yield
        v.add_(1)
        yield
        a[0, 0] = 3
        yield
        a.detach().mul_(2)
        yield
        with torch.no_grad():
            v.copy_(a[2])
        yield

    both(program)


def test_addresses_are_distinct_while_alive_and_offsets_follow_strides():
    tensors = [torch.empty(10, device=DEVICE) for _ in range(50)]
    spans = sorted((t.data_ptr(), t.data_ptr() + 40) for t in tensors)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert tensors[0][3:].data_ptr() - tensors[0].data_ptr() == 12
    assert tensors[0].is_set_to(tensors[0].view(10)) and not tensors[0].is_set_to(tensors[1])
