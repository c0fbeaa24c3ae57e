"""Operators with empty arguments, and masks that select nothing. `python -m tests.empties` tries all operators."""

import pytest
import torch

from tests.differential import DEVICE
from tests.empties import operators, search

# One of each family; the rest is tried by `make faults`.
NAMES = (
    *("add", "sum", "amax", "cumsum", "softmax", "sort", "topk", "cat", "matmul", "bmm", "index_put", "index_add"),
    *("masked_scatter", "masked_fill", "gather", "scatter_add", "nn.functional.linear", "nn.functional.layer_norm"),
    *("nn.functional.embedding", "nn.functional.nll_loss", "searchsorted", "unique", "linalg.solve", "where"),
)


@pytest.mark.parametrize("name", NAMES)
def test_empty_arguments(name):
    found = list(search(operators([name]), DEVICE))
    assert found and [f"{what}: {how}" for what, how in found if how] == []


@pytest.mark.parametrize("accumulate", [False, True])
def test_masks_that_select_nothing(accumulate):
    for shape, values in (((4,), (0,)), ((4,), (1,)), ((4, 3), (0, 3)), ((4, 3), (3,)), ((4, 3), (1, 1))):
        x = torch.ones(shape, device=DEVICE)
        mask = torch.zeros(4, dtype=torch.bool, device=DEVICE)
        x.index_put_((mask,), torch.full(values, 7.0, device=DEVICE), accumulate=accumulate)
        assert torch.equal(x.cpu(), torch.ones(shape))


def test_scaling_what_a_mask_does_not_select():
    x = torch.arange(5.0, device=DEVICE)
    x[x > 10] *= 0.5
    x[x > 2] *= 0.5
    assert x.tolist() == [0, 1, 2, 1.5, 2]


def test_values_that_do_not_fit_a_mask():
    x = torch.arange(4.0, device=DEVICE)
    mask = torch.tensor([True, False, True, True], device=DEVICE)
    with pytest.raises(RuntimeError, match=r"shape mismatch: value tensor of shape \[2\] cannot be broadcast"):
        x[mask] = torch.ones(2, device=DEVICE)
    x[mask] = torch.tensor([7.0, 8.0, 9.0], device=DEVICE)
    assert x.tolist() == [7, 1, 8, 9]
