"""Regions that overlap: what is written where it is read, and who is told of it."""
# ruff: noqa: F841 - the differential helper compares the local variables of a program

from __future__ import annotations

import pytest
import torch

from tests.differential import DEVICE, ON_TINY, both, data

# Writes that overlap their own source: the CPU's result counts.
OVERLAPPING = {
    "shift_up_same_values": lambda a: a.view(-1)[1:].copy_(a.view(-1)[1:]),
    "transpose_onto_itself": lambda a: a.copy_(a.t()),
    "flip_onto_itself": lambda a: a.copy_(a.flip(0)),
    "row_onto_all_rows": lambda a: a.copy_(a[2].clone()),
    "add_transpose": lambda a: a.add_(a.t().clone()),
    "add_itself": lambda a: a.add_(a),
    "swap_halves": lambda a: a.copy_(torch.cat([a[2:], a[:2]])),
    "swap_rows_by_tuple": lambda a: a.__setitem__([0, 1], a[[1, 0]]),
    "cumulative": lambda a: a.copy_(a.cumsum(0)),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_write_that_reads_the_region_it_replaces(name):
    def program(device):
        a = data(4, 4, device=device) + 0
        flat = a.view(-1)
        OVERLAPPING[name](a)
        yield
        a.add_(1)
        OVERLAPPING[name](a)
        yield

    both(program, may_raise=True)


@pytest.mark.parametrize("n", [2, 5, 33])
@pytest.mark.parametrize("up", [True, False])
def test_shifting_a_tensor_onto_itself_is_done_or_refused_as_on_the_cpu(n, up):
    def program(device):
        a = data(n, device=device)
        if up:
            a[1:] = a[:-1]
        else:
            a[:-1] = a[1:]
        yield

    both(program, may_raise=True)


def test_overlapping_as_strided_reads_current_values():
    def program(device):
        a = data(10, device=device)
        windows = a.as_strided((8, 3), (1, 1))
        means = windows.sum(1)
        yield
        a[4:6] = 100
        after = windows.sum(1)
        copied = windows.clone()
        yield
        windows[2].zero_()
        yield

    both(program)


def test_as_strided_beyond_its_view_reaches_the_whole_storage():
    def program(device):
        a = data(12, device=device)
        v = a[4:6]
        w = v.as_strided((3, 4), (4, 1), 0)
        w.add_(1)
        yield
        w.t()[1:3].mul_(2)
        yield

    both(program)


def test_memory_overlap_is_seen_between_views():
    a = torch.zeros(8, device=DEVICE)
    assert torch._C._overlaps(a[:4], a[2:6])
    assert not torch._C._overlaps(a[:4], torch.zeros(8, device=DEVICE))
    assert a.device.type == ("tiny" if ON_TINY else "cpu")
