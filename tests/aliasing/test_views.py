"""Aliasing and metadata: every alias of a storage reads every write, and looks exactly as it does on the CPU."""
# ruff: noqa: F841 - the differential helper compares the local variables of a program

from __future__ import annotations

import gc

import pytest
import torch

from tests.differential import DEVICE, Cost, both, data, flush

# name -> (shape of the base, view of it): every view operation that aliases.
VIEWS = {
    "view": ((4, 6), lambda t: t.view(8, 3)),
    "view_minus_one": ((4, 6), lambda t: t.view(-1)),
    "reshape": ((4, 6), lambda t: t.reshape(2, 2, 6)),
    "reshape_of_transpose": ((4, 6), lambda t: t.t().reshape(3, 2, 4)),
    "flatten": ((2, 3, 4), lambda t: t.flatten(1)),
    "unflatten": ((4, 6), lambda t: t.unflatten(1, (2, 3))),
    "slice": ((4, 6), lambda t: t[1:3, 2:]),
    "slice_with_steps": ((5, 7), lambda t: t[::2, 1::3]),
    "slice_empty": ((4, 6), lambda t: t[2:2]),
    "select": ((4, 6), lambda t: t.select(1, 2)),
    "index_integer": ((4, 6), lambda t: t[-1]),
    "index_none_ellipsis": ((4, 6), lambda t: t[None, ..., 1]),
    "narrow": ((4, 6), lambda t: t.narrow(1, 2, 3)),
    "split": ((4, 6), lambda t: t.split(4, dim=1)),
    "split_sizes": ((4, 6), lambda t: t.split([1, 2, 3], dim=1)),
    "tensor_split": ((4, 6), lambda t: t.tensor_split(4, dim=1)),
    "hsplit": ((4, 6), lambda t: t.hsplit(3)),
    "chunk": ((4, 6), lambda t: t.chunk(3)),
    "unbind": ((3, 4), lambda t: t.unbind(1)),
    "permute": ((2, 3, 4), lambda t: t.permute(2, 0, 1)),
    "transpose": ((2, 3, 4), lambda t: t.transpose(0, -1)),
    "movedim": ((2, 3, 4), lambda t: t.movedim(0, 2)),
    "t": ((4, 6), lambda t: t.t()),
    "T": ((4, 6), lambda t: t.T),
    "mT": ((2, 4, 6), lambda t: t.mT),
    "mH": ((2, 4, 6), lambda t: t.mH),
    "expand": ((4, 1), lambda t: t.expand(4, 3)),
    "expand_new_dim": ((4,), lambda t: t.expand(3, 4)),
    "broadcast_to": ((1, 4), lambda t: t.broadcast_to(2, 3, 4)),
    "squeeze": ((1, 4, 1), lambda t: t.squeeze()),
    "squeeze_dim": ((1, 4, 1), lambda t: t.squeeze(2)),
    "unsqueeze": ((4, 6), lambda t: t.unsqueeze(1)),
    "diagonal": ((4, 6), lambda t: t.diagonal()),
    "diagonal_offset": ((4, 6), lambda t: t.diagonal(offset=-2)),
    "diagonal_batched": ((2, 3, 4), lambda t: t.diagonal(1, dim1=-1, dim2=0)),
    "unfold_overlapping": ((8,), lambda t: t.unfold(0, 3, 2)),
    "unfold_dense": ((8,), lambda t: t.unfold(0, 2, 2)),
    "as_strided_dense": ((12,), lambda t: t.as_strided((3, 4), (4, 1))),
    "as_strided_gaps": ((12,), lambda t: t.as_strided((2, 2), (5, 2), 1)),
    "as_strided_overlapping": ((12,), lambda t: t.as_strided((4, 4), (2, 1), 1)),
    "as_strided_zero_stride": ((12,), lambda t: t.as_strided((3, 2), (0, 1), 4)),
    "as_strided_interleaved": ((24,), lambda t: t.as_strided((2, 3, 2), (1, 5, 3), 2)),
    "as_strided_of_view": ((12,), lambda t: t[3:].as_strided((2, 2), (3, 1))),
    "as_strided_past_the_view": ((12,), lambda t: t[:3].as_strided((10,), (1,), 2)),
    "as_strided_0d": ((12,), lambda t: t.as_strided((), (), 7)),
    "detach": ((4, 6), lambda t: t.detach()),
    "data": ((4, 6), lambda t: t.data),
    "alias": ((4, 6), lambda t: torch.ops.aten.alias(t)),
    "view_as": ((4, 6), lambda t: t.view_as(torch.empty(6, 4, device=t.device))),
    "view_chain": ((4, 6), lambda t: t.t()[1:5].unsqueeze(0).permute(1, 0, 2)[:, 0, ::2].t()),
}
WRITABLE = {
    name: entry
    for name, entry in VIEWS.items()
    if not any(s in name for s in ("expand", "broadcast", "overlapping", "zero_stride"))
}


def first_of(views):
    return views if isinstance(views, torch.Tensor) else views[-1]


@pytest.mark.parametrize("name", VIEWS)
def test_view_sees_writes_to_its_base_before_between_and_after(name):
    shape, view = VIEWS[name]

    def program(device):
        base = data(*shape, device=device)
        early = view(base)
        yield
        base.add_(3)
        yield
        between = view(base)
        base[0] = 7
        yield
        base.mul_(2)
        late = view(base)
        yield

    both(program)


@pytest.mark.parametrize("name", WRITABLE)
def test_base_and_sibling_views_see_writes_through_a_view(name):
    shape, view = WRITABLE[name]

    def program(device):
        base = data(*shape, device=device)
        flat = base.view(-1)
        half = flat[1::2]
        one = view(base)
        yield
        first_of(one).add_(10)
        yield
        first_of(view(base)).mul_(-1)
        half.sub_(1)
        yield
        first_of(one).copy_(torch.full_like(first_of(one), 5))
        yield
        first_of(one).fill_(2)
        total = base.sum() + flat.sum() * 2 + half.sum() * 3
        yield

    both(program)


@pytest.mark.parametrize("name", VIEWS)
def test_view_of_pending_and_of_realized_values_read_alike(name):
    shape, view = VIEWS[name]

    def program(device):
        pending = data(*shape, device=device) + 1
        pending_view = view(pending)
        pending_sum = sum(
            (v * 2).sum() for v in ([pending_view] if isinstance(pending_view, torch.Tensor) else pending_view)
        )
        realized = data(*shape, device=device)
        flush()
        realized_view = view(realized)
        realized_copy = [
            v.clone() for v in ([realized_view] if isinstance(realized_view, torch.Tensor) else realized_view)
        ]
        yield

    both(program)


def test_views_of_views_share_one_storage_through_a_chain_of_writes():
    def program(device):
        a = data(4, 6, device=device)
        b = a.t()
        c = b[1:5:2]
        d = c.unsqueeze(1)
        e = d.expand(2, 3, 4)
        yield
        c += 1
        yield
        d.zero_()
        a[2] = torch.arange(6.0, device=device)
        yield
        b.view_as(b).mul_(3)
        f = e.reshape(-1)
        yield
        f.add_(1)
        a.neg_()
        yield

    both(program)


@pytest.mark.parametrize(
    "dtype, other",
    [
        (torch.float32, torch.int32),
        (torch.float32, torch.uint8),
        (torch.int64, torch.float64),
        (torch.int64, torch.int16),
        (torch.uint8, torch.int32),
        (torch.float16, torch.bfloat16),
        (torch.int8, torch.bool),
    ],
)
def test_view_of_another_dtype_shares_the_bytes(dtype, other):
    def program(device):
        a = data(4, 8, dtype=dtype, device=device)
        if other is torch.bool:
            a = a.abs().clamp(0, 1)
        b = a.view(other)
        yield
        if other is torch.bool:
            b[0] = torch.logical_not(b[0])
        else:
            b[1:].fill_(3)
        yield
        a[0].fill_(1)
        yield
        c = a[1:3].view(other)
        d = c.clone()
        yield

    both(program)


def test_complex_and_real_views_share_memory():
    def program(device):
        z = torch.complex(data(3, 2, device=device), data(3, 2, seed=1, device=device))
        pairs = torch.view_as_real(z)
        yield
        pairs[..., 0] += 5
        yield
        z.mul_(2)
        again = torch.view_as_complex(pairs)
        yield
        again[1] = 3 - 4j
        real, imag = z.real, z.imag
        yield
        imag.neg_()
        real[0] = 9
        yield

    both(program)


def test_conjugate_view_reads_later_writes():
    def program(device):
        z = torch.complex(data(3, 2, device=device), data(3, 2, seed=1, device=device))
        c = z.conj()
        yield
        z.add_(1 + 1j)
        resolved = c.resolve_conj()
        yield
        c.mul_(2j)
        yield

    both(program)


def test_detach_and_data_write_into_the_same_storage():
    def program(device):
        w = data(3, 3, device=device).requires_grad_()
        d = w.detach()
        e = w.data
        yield
        d.add_(1)
        yield
        e.mul_(2)
        with torch.no_grad():
            w.sub_(4)
        yield

    both(program)


def test_set_makes_a_tensor_an_alias_of_another_storage():
    def program(device):
        a = data(4, 3, device=device)
        b = torch.empty(0, device=device)
        b.set_(a)
        yield
        b.add_(1)
        c = torch.empty(0, device=device)
        c.set_(a.untyped_storage(), 3, (2, 2), (3, 1))
        yield
        c.zero_()
        yield
        c.set_(data(5, seed=3, device=device))
        c.add_(1)
        yield

    both(program)


def test_assigning_data_rebinds_the_tensor_and_leaves_old_views():
    def program(device):
        a = data(4, device=device)
        old = a[1:]
        a.data = data(4, seed=1, device=device)
        yield
        a.add_(1)
        old.mul_(2)
        yield

    both(program)


def test_swap_tensors_exchanges_values_and_aliases():
    def program(device):
        a, b = data(3, device=device), data(4, seed=1, device=device)
        torch.utils.swap_tensors(a, b)
        yield
        a.add_(1)
        b.mul_(2)
        yield

    both(program)


def test_resize_grows_and_shrinks_the_storage_in_place():
    def program(device):
        a = data(6, device=device)
        b = a[2:4]
        a.resize_(2, 2)
        yield
        a.add_(1)
        yield
        a.resize_(12)
        a[4:] = 5
        yield
        a.resize_as_(b)
        b.zero_()
        yield

    both(program)


def test_resizing_a_storage_keeps_its_bytes():
    def program(device):
        a = data(6, device=device)
        a.add_(1)
        a.untyped_storage().resize_(48)
        b = a.as_strided((12,), (1,))
        b[6:] = 0
        yield
        del b
        a.untyped_storage().resize_(24)
        yield a.mul_(2)

    both(program)


def test_writing_through_a_permute_writes_the_base_transposed():
    def program(device):
        B = data(4, 4, device=device)
        A = torch.zeros(4, 4, device=device)
        r = A.permute(1, 0)
        r.copy_(B)
        yield [r.equal(B), A.equal(B.T)]

    both(program)


WRITE_THROUGH = {
    "permute": lambda t: t.permute(1, 0),
    "rows": lambda t: t[3:7],
    "column": lambda t: t[:, 5],
    "steps": lambda t: t[::2, 1::3],
    "diagonal": lambda t: t.diagonal(1),
    "permuted_block": lambda t: t.t()[2:9, 4:6],
    "as_strided": lambda t: t.as_strided((3, 4), (40, 2), 7),
    "select": lambda t: t.select(1, 3),
    "unfolded": lambda t: t.unfold(1, 4, 4),
}


@pytest.mark.parametrize("name", WRITE_THROUGH)
def test_write_through_a_view_of_a_realized_tensor_is_one_kernel_on_its_region(name):
    view = WRITE_THROUGH[name]
    a = data(16, 16, device=DEVICE)
    reference = data(16, 16)
    source_cpu = data(*view(reference).shape, seed=2)
    source = source_cpu.to(DEVICE)
    address = a.data_ptr()
    with Cost() as cost:
        view(a).copy_(source)
        flush()
    view(reference).copy_(source_cpu)
    cost.expect(kernels=1)
    cost.at_most(bytes_moved=3 * source.numel() * source.element_size())
    assert a.data_ptr() == address
    assert torch.equal(a.cpu(), reference)


def test_view_operations_record_nothing():
    a = data(4, 6, device=DEVICE)
    with Cost() as cost:
        for shape, view in VIEWS.values():
            if shape == (4, 6):
                view(a)
        a.t_().t_()
    cost.expect(kernels=0, flushes=0)


def test_deleted_aliases_leave_the_storage_intact():
    def program(device):
        a = data(6, 6, device=device)
        v = a[2:4]
        w = v.t()
        a.add_(1)
        del a
        gc.collect()
        yield
        w.mul_(2)
        del v
        yield
        x = w[1:] + 1
        del w
        yield

    both(program)


def test_pending_result_of_a_deleted_tensor_costs_nothing():
    a = data(64, device=DEVICE)
    with Cost() as cost:
        for _ in range(5):
            (a * 3).exp_()
        flush()
    cost.expect(kernels=0)


def test_two_reads_with_a_write_between_see_two_values():
    def program(device):
        a = data(5, device=device)
        before = a * 1
        a.add_(10)
        after = a * 1
        a.zero_()
        yield

    both(program)
