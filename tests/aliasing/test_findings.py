"""What random programs found: each finding as the shortest program that showed it."""

from __future__ import annotations

import pytest
import torch

from tests.differential import both, data
from tests.programs import replay


def test_folded_numbers_of_narrow_integers_wrap_before_they_are_converted():
    def program(device):
        zero = torch.zeros(3, dtype=torch.uint8, device=device)
        return [(zero - 1).float(), (zero - 1).long(), (~zero).float(), (zero.to(torch.int8) - 129).float()]

    both(program)


def test_bits_of_a_folded_number_are_as_wide_as_its_dtype():
    def program(device):
        a = torch.ones(3, dtype=torch.float64, device=device)
        return [(a - a).abs().max(), torch.copysign(a - a, -a), (a.half() - a.half()).abs().max()]

    both(program)


@pytest.mark.parametrize("how", ["amax", "amin"])
def test_the_least_and_the_greatest_integer_compare_as_what_they_are(how):
    """C has no literal for the least int64."""

    def program(device):
        t = torch.tensor([3, -5, 0], device=device) * 2
        t.scatter_reduce_(0, torch.tensor([0, 0, 1], device=device), t.clone(), how, include_self=False)
        least = torch.full((3,), -(2**63), device=device)
        return [t, torch.where(least < t, 1, 2), torch.maximum(least, t), torch.minimum(least, t), t - least]

    both(program)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sums_and_products_of_integers_wrap_inside_a_kernel(dtype):
    """A C compiler may take it for granted that signed numbers do not overflow."""

    def program(device):
        most = torch.iinfo(dtype).max
        x = torch.tensor([most, -most, most // 2, 3], dtype=dtype, device=device)
        y = x * 1
        return [(y + 1 > y).long(), (y + x).long() // 2, (x * y).double(), (y - 2 < y), (-(y - 1 - 1)).long() + 1]

    both(program)


def runs_alike(program: str) -> None:
    """Read at the end alone, and after every line."""
    for compare_each in (False, True):
        replay(program, compare_each)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (0,), (0, 2)])
def test_places_of_nonzero_elements_lie_in_memory_as_on_the_cpu(shape):
    runs_alike(
        f"""
        t1 = torch.ones({shape}, device=device)
        t2 = torch.nonzero(t1)
        t3 = torch.nonzero(t1 * 0)
        t4 = torch.nonzero(t1, out=torch.empty(0, dtype=torch.int64, device=device))
        """
    )


def test_a_vector_of_padding_alone_compiles():
    runs_alike(
        """
        t1 = data(3, 2, 5, dtype=torch.int32, seed=3, device=device)[..., 1::2]
        t2 = t1.diagonal(0, 0, -1)
        t2.index_reduce_(1, torch.arange(1, device=device), data(2, 1, dtype=torch.int32, device=device), 'amax')
        for i in range(3): t1[i] += t1.clone()[2 - i]
        """
    )


@pytest.mark.parametrize(
    "write",
    [
        "torch.select_scatter(t2, t2.select(0, 0) * 2, 0, -1)",
        "torch.slice_scatter(t2, t2[:1] * 2, 0, 1, 2)",
        "torch.diagonal_scatter(t2, t2[0, :2], 1)",
        "torch.as_strided_scatter(t2, t2[0, :2], (2,), (3,), 1)",
    ],
)
def test_scattering_into_a_view_copies_its_storage_as_it_lies(write):
    runs_alike(f"t1 = data(3, 7, device=device)\nt2 = t1[..., 1::2]\nt3 = {write}")


def test_rows_of_a_tensor_built_by_accumulation_compile():
    runs_alike(
        """
        t1 = torch.zeros((4, 4), device=device)
        t1.put_(torch.arange(3, device=device) // 2, data(3, device=device), accumulate=True)
        t2 = t1[torch.tensor([0, 0], device=device)]
        """
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_a_constant_nan_differs_from_itself(dtype):
    def program(device):
        a = torch.full((3,), float("nan"), dtype=dtype, device=device)
        return [a.isnan(), a.eq(a), a.nan_to_num(1), a < a, torch.where(a != a, 1, 2)]

    both(program)


def test_numbers_written_as_bits_of_a_float_may_be_nan():
    runs_alike(
        """
        t1 = data(2, 3, dtype=torch.float64, seed=2, device=device)
        t1.view(torch.int64)[...] = -3
        t1.nan_to_num_(1)
        """
    )


def test_a_vector_of_overwritten_loads_alone_compiles():
    runs_alike(
        """
        t1 = torch.view_as_complex(data(4, 9, 2, seed=2, device=device))[..., 1::2]
        t2 = t1.repeat_interleave(2, 0)
        t2.scatter_(1, torch.arange(4, device=device).flip(0).view((1, -1)).expand((8, 4)), 2)
        """
    )


def test_parts_written_between_reads_of_a_buffer_all_arrive():
    runs_alike(
        """
        t1 = data(5, 2, dtype=torch.int64, seed=3, device=device).permute((1, 0))
        t2 = t1.diagonal(0, 0, -1)
        t2.mul_(2)
        t2[0] = True
        """
    )
    runs_alike(
        """
        t1 = torch.view_as_complex(data(5, 5, 2, device=device))[..., 1::2]
        t1.resize_((2, 3)).zero_()
        t1[..., -1] = data(dtype=torch.uint8, device=device)
        """
    )


def test_bytes_beyond_the_last_element_are_kept():
    runs_alike(
        """
        t1 = data(9, dtype=torch.uint8, device=device)
        t2 = torch.zeros(1, device=device)
        t2.set_(t1.untyped_storage(), 1, (1,), (1,))
        flush()
        t3 = t2.view(torch.float32)
        t1[::3] = t3.clamp(0, 100)
        t2.add_(2)
        t1[8] = 3
        """
    )


def test_parts_written_before_an_update_of_the_whole_arrive():
    runs_alike(
        """
        t1 = data(4, 4, device=device).permute((1, 0))
        t1[0] = 3
        t1[0, 1:3] += 1
        t1.add_(t1.clone())
        """
    )


@pytest.mark.parametrize("shape", [(3, 2, 2), (2, 3), (4, 1, 2, 3)])
def test_sums_of_repeated_elements_count_every_repetition(shape):
    def program(device):
        x = data(*shape, device=device)
        twice = torch.cat([x, x], -1)
        return [
            twice.sum(),
            torch.count_nonzero(twice),
            x.repeat_interleave(3, 0).sum(),
            x.repeat(2, *shape).sum((0, -1)),
        ]

    both(program)


def test_what_no_values_make_possible_is_refused_when_recorded():
    runs_alike(
        """
        t1 = torch.zeros(1, 5, dtype=torch.complex64, device=device)
        t1.index_reduce_(0, torch.arange(1, device=device), torch.ones_like(t1), 'amax')
        t2 = torch.ones(2, device=device)
        """
    )


def test_rows_of_nothing_lie_in_memory_as_on_the_cpu():
    runs_alike(
        """
        t1 = data(3, 2, 2, device=device).narrow(1, 2, 0).mT
        t2 = t1[torch.tensor([0, 0], device=device)]
        t3 = data(3, 4, 2, device=device).permute(2, 0, 1)
        t4 = t3[:, torch.tensor([0, 2, 1], device=device)]
        t5 = t3[t3 > 0]
        """
    )


@pytest.mark.parametrize("n", [9, 40])
def test_elements_written_from_copies_of_the_whole_compile(n):
    def program(device):
        a = data(n, device=device)
        for i in range(n):
            a[i] = a.clone()[n - 1 - i]
        return a

    both(program, schedules=("lazy",))


def test_sums_of_what_folds_to_zeros_are_zero():
    def program(device):
        a = data(3, 2, 5, dtype=torch.int16, seed=3, device=device)[..., 1::2]
        for i in range(2):
            a[..., i] = i
        return [torch.count_nonzero(a > 1), (a > 1).sum(), a.masked_select(a > 1), (a > 1).any()]

    both(program)


OVER_THEIR_OWN_COPIES = {
    "elements by index": "a[torch.tensor([3, 1, 2, 0, 39, 38, 7, 9], device=device)] = before[:8]",
    "all by index": "a[torch.arange(39, -1, -1, device=device)] = before",
    "index_copy_": "a.index_copy_(0, torch.arange(39, -1, -1, device=device), before)",
    "index_add_": "a.index_add_(0, torch.arange(39, -1, -1, device=device), before)",
    "scatter_add_": "a.scatter_add_(0, torch.arange(39, -1, -1, device=device), before)",
    "elements in turn": "for i in range(39): a[i + 1] = a[i] * 0.5 + before[39 - i]",
    "sums in turn": "for i in range(39): a[i + 1].add_(a[i] * 0.5 + before[38 - i])",
    "elements": "for i in range(40): a[i] = before[39 - i]",
    "a part that moves": "for i in range(3): a[i * 3:i * 3 + 20] = before[:20]",
    "as indices": "a[before.long() % 40] = before.flip(0)",
}


@pytest.mark.parametrize("write", OVER_THEIR_OWN_COPIES.values(), ids=OVER_THEIR_OWN_COPIES)
def test_kernels_do_not_read_what_they_have_overwritten(write):
    """A copy of what a kernel of our own writes to is that very memory, until it is overwritten."""

    def program(device):
        a = data(40, device=device)
        yield
        before = a.clone()
        exec(write, {"a": a, "before": before, "torch": torch, "device": device})
        return a

    both(program)


@pytest.mark.parametrize("shape, strides", [((2, 2), (3, 0)), ((3, 3), (2, 2)), ((2, 2, 2), (0, 3, 1))])
def test_elements_between_those_written_more_than_once_stay(shape, strides):
    def program(device):
        a = data(40, device=device)
        yield
        for i in range(40):
            a[i : i + 2] = i
        a.as_strided(shape, strides, 4).zero_()
        return a

    both(program)


@pytest.mark.parametrize("device", ["cpu", "tiny"])
def test_indices_between_those_written_more_than_once_are_checked(device):
    index = torch.tensor([5, 100, 100, 5]).to(device)
    index.as_strided((2, 2), (3, 0)).zero_()
    with pytest.raises(IndexError, match="index 100 is out of bounds for dimension 0 with size 10"):
        torch.arange(10, device=device)[index]


def test_arguments_that_turn_out_to_be_unneeded_do_not_move_the_others():
    """tinygrad took the number of a thread for a buffer."""

    def program(device):
        a, b, c, d = (data(300, 220, seed=seed, device=device) for seed in range(4))
        yield
        d.copy_(torch.where(d > 0, d, a))
        d.copy_(d.roll(1, 0) * 0.5 + a)
        a[::2] = c[::2] * 0.5
        b.div_(a.abs() + 1)
        half = b * 0.5 - b
        a[::2] = d[::2] * 0.5
        c.copy_(d.flip(0) - c * 0.5)
        a.sub_(half.mean() * 0.5)
        return a, b, c, d, half, a * 0.5 - c

    both(program, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pending", [False, True])
def test_bytes_that_are_not_zero_are_true(pending):
    def program(device):
        a = torch.tensor([255, 0, 254, 2, 1, 0, 7, 128], dtype=torch.uint8).to(device)
        a = a + 0 if pending else a
        yield
        mask = a.view(torch.bool)
        results = [mask.sum(), ~mask, mask & (a > 1), mask.float(), mask.any(), torch.where(mask, 1, 0), a[mask]]
        mask[2:4] = False
        mask[6:].logical_not_()
        return [*results, a, mask.long()]

    both(program)


def test_places_that_a_choice_by_data_leaves_out_are_stored():
    """tinygrad took what is invalid in a branch that is not chosen for invalid, and stored nothing there."""
    runs_alike(
        """
        t1 = data(3, 2, 5, dtype=torch.float32, seed=2, device=device)[..., 1::2]
        t1.transpose_(-1, 0)
        t1.put_(torch.arange(3, device=device) // 2, data(3, seed=2, device=device), accumulate=True)
        for i in range(2): t1.select(0, i).add_(i)
        t1[t1.select(-1, 0) > 0] = -3
        t3 = t1.diagonal(0, 0, -1)
        t3.floor_()
        t4 = t1.diagonal(2, 1, -1)
        t5 = t4.roll(1, 0)
        t7 = t4.t().clone()
        """
    )


BESIDE_MASKS = {
    "a number": "a[mask, index] = -1",
    "values": "a[mask, index] = data(2, 4, device=device)",
    "a mask after": "a[index, mask] = data(2, 4, device=device)",
    "two masks": "a[mask, mask] = -1",
    "sums": "a.index_put_((mask, index), data(2, 4, device=device), accumulate=True)",
    "a gap between": "b[mask, :, index] = -1",
    "other dtypes": "a[mask, index] = torch.ones(2, 4, dtype=torch.int64, device=device)",
    "as many as it is not": "a[mask, torch.zeros(3, dtype=torch.int64, device=device)] = -1",
}


@pytest.mark.parametrize("write", BESIDE_MASKS.values(), ids=BESIDE_MASKS)
def test_masks_beside_other_indices_are_written_through(write):
    def program(device):
        a, b = data(3, 3, 4, device=device), data(3, 2, 3, device=device)
        mask = torch.tensor([True, False, True], device=device)
        index = torch.tensor([2, 0], device=device)
        exec(write, {"a": a, "b": b, "mask": mask, "index": index, "torch": torch, "data": data, "device": device})
        return a, b

    both(program, may_raise=True)
