"""What the CPU refuses is refused alike, with its words, and nothing is changed by the attempt."""

from __future__ import annotations

import pytest
import torch

from tests.differential import DEVICE, Cost, data, same_error


def leaf(device):
    return data(3, 4, device=device).requires_grad_()


# name -> (what to make, what is refused)
REFUSED = {
    "add_to_expanded": (lambda d: data(1, 4, device=d), lambda t: t.expand(3, 4).add_(1)),
    "copy_to_expanded": (
        lambda d: data(4, device=d),
        lambda t: t.expand(3, 4).copy_(torch.ones(3, 4, device=t.device)),
    ),
    "copy_partial_overlap": (lambda d: data(8, device=d), lambda t: t[1:].add_(t[:-1])),
    "mul_partial_overlap_permuted": (lambda d: data(4, 4, device=d), lambda t: t.mul_(t.t())),
    "out_overlaps_input": (lambda d: data(8, device=d), lambda t: torch.add(t[:-1], 1, out=t[1:])),
    "out_internal_overlap": (lambda d: data(1, 4, device=d), lambda t: torch.add(t, 1, out=t.expand(3, 4))),
    "scatter_to_expanded": (
        lambda d: data(1, 4, device=d),
        lambda t: t.expand(3, 4).scatter_(0, torch.zeros(1, 4, dtype=torch.int64, device=t.device), 1.0),
    ),
    "index_add_to_expanded": (
        lambda d: data(1, 4, device=d),
        lambda t: t.expand(3, 4).index_add_(0, torch.tensor([0], device=t.device), torch.ones(1, 4, device=t.device)),
    ),
    "view_noncontiguous": (lambda d: data(3, 4, device=d), lambda t: t.t().view(12)),
    "view_wrong_size": (lambda d: data(3, 4, device=d), lambda t: t.view(5, 3)),
    "reshape_wrong_size": (lambda d: data(3, 4, device=d), lambda t: t.reshape(5, -1)),
    "view_two_unknown": (lambda d: data(3, 4, device=d), lambda t: t.view(-1, -1)),
    "view_dtype_size": (lambda d: data(3, 3, device=d), lambda t: t.view(torch.float64)),
    "view_dtype_noncontiguous": (lambda d: data(4, 4, device=d), lambda t: t.t().view(torch.int16)),
    "view_as_complex_odd": (lambda d: data(3, 3, device=d), torch.view_as_complex),
    "as_strided_out_of_bounds": (lambda d: data(6, device=d), lambda t: t.as_strided((4, 2), (2, 1))),
    "as_strided_offset_out_of_bounds": (lambda d: data(6, device=d), lambda t: t.as_strided((2,), (1,), 5)),
    "as_strided_negative": (lambda d: data(6, device=d), lambda t: t.as_strided((2,), (-1,), 5)),
    "as_strided_ranks": (lambda d: data(6, device=d), lambda t: t.as_strided((2, 3), (1,))),
    "as_strided_in_place_out_of_bounds": (lambda d: data(6, device=d), lambda t: t.as_strided_((7,), (1,))),
    "expand_wrong": (lambda d: data(3, 4, device=d), lambda t: t.expand(2, 4)),
    "select_out_of_range": (lambda d: data(3, 4, device=d), lambda t: t.select(0, 3)),
    "index_out_of_range": (lambda d: data(3, 4, device=d), lambda t: t[5]),
    "narrow_out_of_range": (lambda d: data(3, 4, device=d), lambda t: t.narrow(0, 2, 2)),
    "permute_repeated": (lambda d: data(3, 4, device=d), lambda t: t.permute(0, 0)),
    "transpose_dim": (lambda d: data(3, 4, device=d), lambda t: t.transpose(0, 2)),
    "t_of_three": (lambda d: data(2, 3, 4, device=d), lambda t: t.t_()),
    "split_sizes": (lambda d: data(3, 4, device=d), lambda t: t.split([1, 1], 1)),
    "unfold_too_large": (lambda d: data(3, device=d), lambda t: t.unfold(0, 4, 1)),
    "step_negative": (lambda d: data(3, device=d), lambda t: t[::-1]),
    "squeeze_dim": (lambda d: data(3, device=d), lambda t: t.squeeze_(4)),
    "leaf_in_place": (leaf, lambda t: t.add_(1)),
    "leaf_copy": (leaf, lambda t: t.copy_(torch.zeros_like(t))),
    "leaf_setitem": (leaf, lambda t: t.__setitem__(0, 1)),
    "leaf_view_in_place": (leaf, lambda t: t[0].mul_(2)),
    "leaf_flat_in_place": (leaf, lambda t: t.view(-1).zero_()),
    "leaf_unbind_in_place": (leaf, lambda t: t.unbind()[0].add_(1)),
    "leaf_out": (leaf, lambda t: torch.add(t.detach(), 1, out=t)),
    "leaf_resize": (leaf, lambda t: t.resize_(2, 2)),
    "setitem_shape": (lambda d: data(3, 4, device=d), lambda t: t.__setitem__(0, torch.ones(3, device=t.device))),
    "setitem_too_many_indices": (lambda d: data(3, 4, device=d), lambda t: t.__setitem__((0, 0, 0), 1)),
    "setitem_mask_shape": (
        lambda d: data(3, 4, device=d),
        lambda t: t.__setitem__(torch.ones(4, 4, dtype=torch.bool, device=t.device), 1),
    ),
    "setitem_index_dtype": (
        lambda d: data(3, 4, device=d),
        lambda t: t.__setitem__(torch.ones(2, device=t.device), 1),
    ),
    "copy_shape": (lambda d: data(3, 4, device=d), lambda t: t.copy_(torch.ones(3, 3, device=t.device))),
    "add_shape": (lambda d: data(3, 4, device=d), lambda t: t.add_(torch.ones(2, 4, device=t.device))),
    "add_would_grow": (lambda d: data(3, 1, device=d), lambda t: t.add_(torch.ones(3, 4, device=t.device))),
    "add_dtype": (lambda d: data(3, dtype=torch.int64, device=d), lambda t: t.add_(0.5)),
    "div_dtype": (lambda d: data(3, dtype=torch.int64, device=d), lambda t: t.div_(2)),
    "and_dtype": (lambda d: data(3, device=d), lambda t: t.bitwise_and_(1)),
    "index_put_dtype": (
        lambda d: data(3, 4, device=d),
        lambda t: t.index_put_(
            (torch.tensor([0], device=t.device),), torch.ones(4, dtype=torch.int64, device=t.device)
        ),
    ),
    "index_copy_shape": (
        lambda d: data(3, 4, device=d),
        lambda t: t.index_copy_(0, torch.tensor([0, 1], device=t.device), torch.ones(3, 4, device=t.device)),
    ),
    "index_fill_dtype": (lambda d: data(3, 4, device=d), lambda t: t.index_fill_(0, torch.ones(1, device=t.device), 1)),
    "scatter_dtype": (
        lambda d: data(3, 4, device=d),
        lambda t: t.scatter_(
            0,
            torch.zeros(1, 4, dtype=torch.int64, device=t.device),
            torch.ones(1, 4, dtype=torch.int32, device=t.device),
        ),
    ),
    "scatter_rank": (
        lambda d: data(3, 4, device=d),
        lambda t: t.scatter_(0, torch.zeros(4, dtype=torch.int64, device=t.device), torch.ones(3, 4, device=t.device)),
    ),
    "masked_fill_mask_dtype": (lambda d: data(3, 4, device=d), lambda t: t.masked_fill_(t, 1)),
    "masked_fill_value_rank": (
        lambda d: data(3, 4, device=d),
        lambda t: t.masked_fill_(t > 0, torch.ones(2, device=t.device)),
    ),
    "index_add_dtype": (
        lambda d: data(3, 4, device=d),
        lambda t: t.index_add_(
            0, torch.tensor([0], device=t.device), torch.ones(1, 4, dtype=torch.int64, device=t.device)
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_words_of_the_cpu_and_nothing_changed(name):
    make, action = REFUSED[name]
    assert same_error(action, make)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_on_pending_values_and_nothing_recorded(name):
    make, action = REFUSED[name]

    def pending(device):
        made = make(device)
        if not made.requires_grad:
            made.add_(1)
        return made

    assert same_error(action, pending)


def test_refusal_runs_nothing_and_the_next_operation_works():
    a = data(1, 4, device=DEVICE)
    with Cost() as cost:
        with pytest.raises(RuntimeError, match="single memory location"):
            a.expand(3, 4).add_(1)
    cost.expect(kernels=0)
    assert (a + 1).tolist() == (data(1, 4) + 1).tolist()


def test_modifying_a_saved_result_before_backward_is_an_error():
    def action(w):
        y = w.exp()
        y.add_(1)
        y.sum().backward()

    message = same_error(action, leaf)
    assert "modified by an inplace operation" in message


def test_modifying_a_saved_operand_through_a_view_before_backward_is_an_error():
    def action(w):
        x = torch.ones(3, 4, device=w.device)
        y = w * x
        x[0].mul_(2)
        y.sum().backward()

    assert "modified by an inplace operation" in same_error(action, leaf)


def test_modifying_a_saved_operand_through_its_base_before_backward_is_an_error():
    def action(w):
        x = torch.ones(6, 4, device=w.device)
        y = w * x[:3]
        x.zero_()
        y.sum().backward()

    assert "modified by an inplace operation" in same_error(action, leaf)


def test_modifying_one_of_the_outputs_of_unbind_is_an_error():
    def action(w):
        parts = (w * 2).unbind()
        parts[0].add_(1)

    assert "output of a function that returns multiple views" in same_error(action, leaf)


def test_backward_twice_without_retaining_is_an_error():
    def action(w):
        y = w.exp().sum()
        y.backward()
        w.grad = None
        y.backward()

    assert "second time" in same_error(action, leaf)


def test_inference_tensor_is_refused_by_autograd():
    def make(device):
        with torch.inference_mode():
            return data(3, device=device) + 1

    assert "nference tensors cannot be saved" in same_error(lambda t: leaf(t.device)[0, :3] * t, make)
    assert "inference tensor" in same_error(lambda t: t.requires_grad_(), make)
