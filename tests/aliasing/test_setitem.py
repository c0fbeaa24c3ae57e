"""Assignment is lazy, reaches every alias in every form, and a partial write costs what it writes."""
# ruff: noqa: F841 - the differential helper compares the local variables of a program

from __future__ import annotations

import pytest
import torch

import torch_tinygrad
from tests.differential import DEVICE, ON_TINY, Cost, both, data, flush
from torch_tinygrad.target import target


def index(*values, device):
    return torch.tensor(values, device=device)


# name -> assignment into a 5 x 6 tensor `a`, with `d` the device: every form of `__setitem__`.
ASSIGNMENTS = {
    "integer_scalar": lambda a, d: a.__setitem__(2, 9),
    "integers_scalar": lambda a, d: a.__setitem__((2, -1), 9.5),
    "row_tensor": lambda a, d: a.__setitem__(1, data(6, seed=1, device=d)),
    "slice_scalar": lambda a, d: a.__setitem__(slice(1, 4), -1),
    "slice_tensor": lambda a, d: a.__setitem__(slice(1, 3), data(2, 6, seed=1, device=d)),
    "step": lambda a, d: a.__setitem__(slice(None, None, 2), 3),
    "column_step": lambda a, d: a.__setitem__((slice(None), slice(1, None, 2)), data(5, 3, seed=1, device=d)),
    "none": lambda a, d: a.__setitem__((None, slice(2)), data(1, 2, 6, seed=1, device=d)),
    "ellipsis": lambda a, d: a.__setitem__((..., 0), data(5, seed=1, device=d)),
    "everything": lambda a, d: a.__setitem__(..., 4),
    "broadcast_row": lambda a, d: a.__setitem__(slice(None), data(6, seed=1, device=d)),
    "broadcast_column": lambda a, d: a.__setitem__(slice(None), data(5, 1, seed=1, device=d)),
    "mask": lambda a, d: a.__setitem__(a > 0, 7),
    "mask_of_rows": lambda a, d: a.__setitem__(a[:, 0] > 0, -7),
    "mask_tensor_value": lambda a, d: a.__setitem__(a > 0, torch.tensor(2.0, device=d)),
    "mask_and_slice": lambda a, d: a.__setitem__((slice(1, 4), a[0] > 0), 5),
    "true": lambda a, d: a.__setitem__(True, 5),
    "integer_tensor": lambda a, d: a.__setitem__(index(0, 3, device=d), 8),
    "integer_list": lambda a, d: a.__setitem__([0, 3, -1], data(3, 6, seed=1, device=d)),
    "integer_tensors": lambda a, d: a.__setitem__(
        (index(0, 2, 4, device=d), index(1, 3, 5, device=d)), data(3, device=d)
    ),
    "outer_integer_tensors": lambda a, d: a.__setitem__((index(0, 2, device=d)[:, None], index(1, 3, 5, device=d)), 6),
    "negative_integers": lambda a, d: a.__setitem__(index(-1, -3, device=d), data(2, 6, seed=1, device=d)),
    "mixed_slice_tensor": lambda a, d: a.__setitem__(
        (slice(1, 4), index(5, 0, device=d)), data(3, 2, seed=1, device=d)
    ),
    "mixed_integer_tensor": lambda a, d: a.__setitem__((3, index(5, 0, device=d)), data(2, seed=1, device=d)),
    "mixed_none_tensor": lambda a, d: a.__setitem__((None, index(4, 0, device=d)), data(1, 2, 6, seed=1, device=d)),
    "uint8_mask": lambda a, d: a.__setitem__(index(1, 0, 1, 0, 1, device=d).bool(), 1.5),
    "scalar_tensor": lambda a, d: a.__setitem__((1, 1), torch.tensor(3, device=d)),
    "cpu_scalar_tensor": lambda a, d: a.__setitem__((1, slice(2)), torch.tensor(3.5)),
    "from_itself": lambda a, d: a.__setitem__(0, a[1] * 2),
    "from_overlapping_slice": lambda a, d: a.__setitem__(slice(1, None), a[:-1].clone()),
    "integer_from_float": lambda a, d: a.__setitem__(0, data(6, seed=1, device=d) + 0.75),
    "float_from_integer": lambda a, d: a.__setitem__(0, data(6, dtype=torch.int64, seed=1, device=d)),
    "float_from_bool": lambda a, d: a.__setitem__(0, data(6, dtype=torch.bool, seed=1, device=d)),
    "empty_slice": lambda a, d: a.__setitem__(slice(2, 2), 5),
    "empty_index": lambda a, d: a.__setitem__(torch.empty(0, dtype=torch.int64, device=d), 5),
}

# The same for the named operators.
INDEXED_WRITES = {
    "index_put": lambda a, d: a.index_put_((index(0, 2, device=d),), data(2, 6, seed=1, device=d).to(a.dtype)),
    "index_put_accumulate": lambda a, d: a.index_put_(
        (index(0, 2, 0, device=d),), data(3, 6, seed=1, device=d).to(a.dtype), accumulate=True
    ),
    "index_put_pairs_accumulate": lambda a, d: a.index_put_(
        (index(0, 2, 0, 4, device=d), index(1, 1, 1, 5, device=d)),
        data(4, seed=1, device=d).to(a.dtype),
        accumulate=True,
    ),
    "index_copy": lambda a, d: a.index_copy_(1, index(5, 0, 2, device=d), data(5, 3, seed=1, device=d).to(a.dtype)),
    "index_add": lambda a, d: a.index_add_(0, index(1, 1, 3, device=d), data(3, 6, seed=1, device=d).to(a.dtype)),
    "index_add_alpha": lambda a, d: a.index_add_(0, index(1, 1, device=d), data(2, 6, device=d).to(a.dtype), alpha=2),
    "index_fill": lambda a, d: a.index_fill_(1, index(0, 4, device=d), 7),
    "index_fill_tensor": lambda a, d: a.index_fill_(0, index(2, device=d), torch.tensor(3.0, device=d).to(a.dtype)),
    "index_reduce_amax": lambda a, d: a.index_reduce_(
        0, index(1, 1, 3, device=d), data(3, 6, seed=1, device=d).to(a.dtype), "amax"
    ),
    "scatter": lambda a, d: a.scatter_(
        1, index(0, 5, 2, device=d).expand(5, 3), data(5, 3, seed=1, device=d).to(a.dtype)
    ),
    "scatter_value": lambda a, d: a.scatter_(0, index(0, 3, device=d)[:, None].expand(2, 4), 9),
    "scatter_add": lambda a, d: a.scatter_add_(
        1, index(0, 0, 2, device=d).expand(4, 3), data(4, 3, seed=1, device=d).to(a.dtype)
    ),
    "scatter_reduce_sum": lambda a, d: a.scatter_reduce_(
        1, index(0, 0, 2, device=d).expand(4, 3), data(4, 3, seed=1, device=d).to(a.dtype), "sum"
    ),
    "scatter_reduce_prod": lambda a, d: a.scatter_reduce_(
        1, index(0, 0, 2, device=d).expand(4, 3), data(4, 3, seed=1, device=d).to(a.dtype), "prod"
    ),
    "scatter_reduce_mean": lambda a, d: a.scatter_reduce_(
        1,
        index(0, 1, 2, device=d).expand(4, 3),
        data(4, 3, seed=1, device=d).to(a.dtype) * 3,
        "mean",
        include_self=False,
    ),
    "scatter_reduce_amax": lambda a, d: a.scatter_reduce_(
        0, index(1, 1, 4, device=d)[:, None].expand(3, 6), data(3, 6, seed=1, device=d).to(a.dtype), "amax"
    ),
    "scatter_reduce_amin_new": lambda a, d: a.scatter_reduce_(
        0,
        index(1, 1, 4, device=d)[:, None].expand(3, 6),
        data(3, 6, seed=1, device=d).to(a.dtype),
        "amin",
        include_self=False,
    ),
    "scatter_multiply": lambda a, d: a.scatter_(
        1, index(0, 3, device=d).expand(5, 2), data(5, 2, seed=1, device=d).to(a.dtype), reduce="multiply"
    ),
    "masked_fill": lambda a, d: a.masked_fill_(a > 0, 4),
    "masked_fill_broadcast": lambda a, d: a.masked_fill_(data(6, dtype=torch.bool, device=d), -4),
    "masked_fill_tensor": lambda a, d: a.masked_fill_(a > 0, torch.tensor(4, device=d).to(a.dtype)),
    "masked_scatter": lambda a, d: a.masked_scatter_(a > 0, data(30, seed=1, device=d).to(a.dtype)),
    "put": lambda a, d: a.put_(index(0, 29, -2, device=d), data(3, seed=1, device=d).to(a.dtype)),
    "put_accumulate": lambda a, d: a.put_(
        index(7, 7, 8, device=d), data(3, seed=1, device=d).to(a.dtype), accumulate=True
    ),
    "fill": lambda a, d: a.fill_(2),
    "copy": lambda a, d: a.copy_(data(6, seed=1, device=d)),
    "zero": lambda a, d: a[1:3].zero_(),
}
WRITES = {**ASSIGNMENTS, **INDEXED_WRITES}
DTYPES = (torch.float32, torch.float16, torch.int64, torch.uint8)


@pytest.mark.parametrize("name", WRITES)
def test_assignment_reaches_every_alias(name):
    def program(device):
        a = data(5, 6, device=device)
        flat = a.view(-1)
        column = a.t()[2]
        yield
        WRITES[name](a, device)
        yield
        a.add_(1)
        WRITES[name](a, device)
        yield

    both(program)


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_assignment_converts_or_refuses_other_dtypes_as_the_cpu_does(name, dtype):
    def program(device):
        a = data(5, 6, dtype=dtype, device=device)
        WRITES[name](a, device)
        yield

    both(program, schedules=("lazy",), may_raise=True)


@pytest.mark.parametrize("name", WRITES)
def test_assignment_through_a_permuted_and_stepped_view(name):
    def program(device):
        base = data(6, 10, device=device)
        a = base[:, ::2].t()
        WRITES[name](a, device)
        yield

    both(program, schedules=("lazy",))


@pytest.mark.parametrize("name", WRITES)
def test_assignment_runs_no_kernel_when_called(name):
    a = data(5, 6, device=DEVICE)
    warm = a.clone()
    WRITES[name](warm, DEVICE)
    flush()
    with Cost() as cost:
        WRITES[name](a, DEVICE)
    cost.expect(kernels=0, compiles=0)


# ---------------------------------------------------------------------------------------------------- partial writes

SLACK = 1 << 16  # bytes that small tensors of a test may take


def buffer(t: torch.Tensor) -> int:
    """Where a tensor's bytes really are: `data_ptr` stays even where they move."""
    return torch_tinygrad._C.buffer_address(t) if ON_TINY else t.data_ptr()


def fresh_peak() -> int:
    """Memory in use; from here on `peak_memory` says what was most."""
    if ON_TINY:
        torch.tiny.reset_peak_memory_stats()
    return peak_memory()


def peak_memory() -> int:
    return torch.tiny.max_memory_allocated() if ON_TINY else 0


def test_assigning_one_row_of_a_large_tensor_moves_one_row():
    a = torch.zeros(4096, 4096, device=DEVICE)
    row = data(4096, device=DEVICE)
    flush()
    address, peak = buffer(a), fresh_peak()
    with Cost() as cost:
        a[1234] = row
        flush()
    cost.at_most(kernels=1, bytes_moved=3 * 4096 * 4)
    assert buffer(a) == address and peak_memory() <= peak + SLACK
    assert torch.equal(a[1234].cpu(), row.cpu()) and a[1233:1236].cpu().abs().sum() == row.cpu().abs().sum()


def test_appending_to_a_key_value_cache_moves_one_position():
    cache = torch.zeros(2, 8, 2048, 16, device=DEVICE)
    flush()
    address, peak = buffer(cache), fresh_peak()
    for step in range(4):
        key = data(2, 8, 1, 16, seed=step, device=DEVICE)
        flush()
        with Cost() as cost:
            cache[:, :, step : step + 1] = key
            flush()
        cost.at_most(kernels=1, bytes_moved=3 * 2 * 8 * 16 * 4)
        assert torch.equal(cache[:, :, step : step + 1].cpu(), key.cpu())
        assert buffer(cache) == address and peak_memory() <= peak + SLACK
    assert cache[:, :, 4:].abs().sum().item() == 0


def test_index_copy_of_three_rows_moves_three_rows():
    a = torch.zeros(4096, 256, device=DEVICE)
    rows, where = data(3, 256, device=DEVICE), torch.tensor([7, 4000, 12], device=DEVICE)
    flush()
    address, peak = buffer(a), fresh_peak()
    with Cost() as cost:
        a.index_copy_(0, where, rows)
        flush()
    # Where threads work in groups, each looks whether a row is its own: all of it is counted as read.
    cost.at_most(bytes_moved=a.nbytes // 32 if target().has_groups else 3 * 3 * 256 * 4)
    assert buffer(a) == address and peak_memory() <= peak + SLACK
    assert torch.equal(a[[7, 4000, 12]].cpu(), rows.cpu()) and a.abs().sum().item() == rows.cpu().abs().sum()


def test_in_place_arithmetic_on_one_row_moves_one_row():
    a = torch.ones(1024, 1024, device=DEVICE)
    flush()
    with Cost() as cost:
        a[17] *= 3
        a[17].add_(1)
        flush()
    cost.at_most(bytes_moved=3 * 1024 * 4)
    assert a[17].sum().item() == 4096 and a.sum().item() == 1024 * 1023 + 4096


def test_replayed_partial_write_still_moves_only_its_region():
    a = torch.zeros(512, 512, device=DEVICE)
    flush()
    for step in range(3):
        row = data(512, seed=step, device=DEVICE)
        with Cost() as cost:
            a[5] = row
            flush()
        assert torch.equal(a[5].cpu(), row.cpu())
    cost.at_most(compiles=0, bytes_moved=3 * 512 * 4)
