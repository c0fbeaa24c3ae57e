"""Kernels that loop over the same elements run as one: nothing but the number of kernels tells."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from torch_tinygrad.choice import is_host

SIZES = ((40, 30), (1000,), (7, 11, 13))


def kernels_of(program) -> int:
    """How many kernels a program takes that ends with a synchronize."""
    torch.tiny.synchronize()
    before = torch.tiny.stats()["kernels"]
    program()
    torch.tiny.synchronize()
    return torch.tiny.stats()["kernels"] - before


def values(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_an_optimizer_takes_a_kernel_for_each_parameter(optimizer):
    models = []
    for device in ("cpu", "tiny"):
        parameters = nn.ParameterList([nn.Parameter(values(*size).to(device)) for size in SIZES])
        models.append((parameters, optimizer(parameters, lr=0.01)))
    for step in range(5):
        for device, (parameters, _) in zip(("cpu", "tiny"), models, strict=True):
            for parameter, size in zip(parameters, SIZES, strict=True):
                parameter.grad = (values(*size) * (step + 1)).to(device)
        models[0][1].step()
        taken = kernels_of(models[1][1].step)
    assert taken == len(SIZES)
    for reference, ours in zip(*(p for p, _ in models), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), reference.detach())


def two_results(x, y):
    return x + y, x * y


def one_of_the_other(x, y):
    kept = x * 3 + y
    return kept, kept * y - x


def a_chain_in_place(x, y):
    x.add_(y)
    y.mul_(x)
    x.sub_(y)
    return x, y


def three_of_one_dear_value(x, y):
    expensive = torch.exp(x) * torch.sin(y)
    return expensive + 1, expensive * 2, expensive - x


@pytest.mark.parametrize("program", [two_results, one_of_the_other, a_chain_in_place, three_of_one_dear_value])
def test_results_of_the_same_elements_take_one_kernel(program):
    ours = [values(64, 50).to("tiny"), values(50, 64).t().contiguous().to("tiny")]
    reference = [t.cpu() for t in ours]
    results = []
    assert kernels_of(lambda: results.extend(program(*ours))) == 1
    for got, expected in zip((*results, *ours), (*program(*reference), *reference), strict=True):
        torch.testing.assert_close(got.cpu(), expected)


def test_what_only_its_own_kernel_reads_is_not_stored():
    x = values(1 << 16).to("tiny")
    torch.tiny.synchronize()
    torch.tiny.reset_stats()
    kept = torch.exp(x) * torch.sigmoid(x)
    results = kept + 1, kept * 2
    del kept
    torch.tiny.synchronize()
    stats = torch.tiny.stats()
    assert (stats["kernels"], stats["bytes_moved"]) == (1, 3 * 4 << 16)
    del results


def overwritten_without_being_read(x, y):
    kept = x * 2
    x.fill_(3.0)
    return kept, x + y


def overwritten_after_a_condition(x, y):
    kept = torch.where(y > 0, x, 0.0)
    x.mul_(2)
    return kept, torch.where(y > 0, 0.0, x)


def exchanged(x, y):
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return (kept,)


def neighbours(x, y):
    kept = x[1:] + y[1:]
    x[:-1].mul_(2)
    return kept, x[:-1] - y[1:]


def transposed(x, y):
    kept = x.t() + y
    x.add_(1)
    return kept, x.t() * kept


def reversed_rows(x, y):
    kept = x.flip(0) + 1
    x.mul_(kept)
    return kept, x.flip(0)


def half_written(x, y):
    kept = x + y
    x[:, ::2] = kept[:, ::2]
    y.add_(x)
    return kept, x * y


def reinterpreted(x, y):
    bits = x.view(torch.int32)
    kept = x + 1
    bits.add_(1)
    return kept, x * y, bits


HAZARDS = (
    overwritten_without_being_read, overwritten_after_a_condition, exchanged, neighbours, transposed, reversed_rows,
    half_written, reinterpreted,
)  # fmt: skip


@pytest.mark.parametrize("program", HAZARDS)
def test_writes_in_place_are_seen_in_order(program):
    reference = [values(32, 32), values(32, 32) * 2]
    ours = [t.to("tiny") for t in reference]
    for _ in range(4):
        torch.tiny.synchronize()
        for got, expected in zip((*program(*ours), *ours), (*program(*reference), *reference), strict=True):
            torch.testing.assert_close(got.cpu(), expected, rtol=1e-6, atol=1e-5)


def test_weights_that_stay_are_packed_until_they_are_written():
    """The second run of a convolution packs its weights; a write, in place or not, must be seen at once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 3, stride=2, bias=False))
    ours = copy.deepcopy(model).to("tiny")
    image = values(16, 8, 20, 20)

    def check():
        with torch.no_grad():
            torch.testing.assert_close(ours(image.to("tiny")).cpu(), model(image), rtol=1e-4, atol=1e-4)

    for change in (
        lambda m: None,
        lambda m: m[0].weight.mul_(1.5),
        lambda m: m[2].weight[3].zero_(),
        lambda m: m[0].weight.copy_(values(32, 8, 3, 3).to(m[0].weight.device)),
        lambda m: m[2].weight.set_(m[2].weight.detach() * 2),
        lambda m: m[0].weight.data.flip(0),
    ):
        with torch.no_grad():
            change(model), change(ours)
        for _ in range(3):
            check()
    image = values(4, 8, 12, 12)
    for _ in range(3):
        check()
    model.train(), ours.train()
    for _ in range(3):
        for m, device in ((model, "cpu"), (ours, "tiny")):
            m.zero_grad()
            m(image.to(device)).square().mean().backward()
            with torch.no_grad():
                for parameter in m.parameters():
                    parameter -= 1e-4 * parameter.grad
        check()


def test_results_that_aten_made_are_counted_and_given_back():
    weight, image = values(32, 16, 3, 3).to("tiny"), values(8, 16, 20, 20).to("tiny")
    torch.tiny.synchronize()
    before = torch.tiny.memory_allocated()
    result = torch.conv2d(image, weight)
    torch.tiny.synchronize()
    assert torch.tiny.memory_allocated() - before == result.nbytes
    kept, result = result[3:5], None
    torch.testing.assert_close(kept.cpu(), torch.conv2d(image.cpu(), weight.cpu())[3:5], rtol=1e-4, atol=1e-4)
    del kept
    assert torch.tiny.memory_allocated() == before


def test_long_traces_are_computed_in_pieces():
    """Updates of one another that no loop rolls up: kernels stay small, as compiling one takes its size squared."""

    def run(device: str) -> tuple[list[torch.Tensor], int]:
        tensors = [(values(16).double() + i).to(device) for i in range(7)]

        def update() -> None:
            for i in range(300):
                tensors[i % 7].mul_(0.5).add_(tensors[(i * i) % 7])

        return tensors, kernels_of(update)

    (expected, _), (got, taken) = run("cpu"), run("tiny")
    assert 2 <= taken <= 60
    for theirs, ours in zip(expected, got, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


# ---------------------------------------------------------------------------------------------------------------- sums


def sums_of_products(x, y):
    return (x * y).sum(1), y.sum(1), (x * x).sum(1)


def a_sum_and_what_follows(x, y):
    total = (x * y).sum(1)
    return total, total / (y.sum(1).abs() + 1)


def a_largest_and_a_sum(x, y):
    return x.amax(1), (x * y).sum(1)


def a_variance_of_a_mean(x, y):
    mean = x.mean(1, keepdim=True)
    return mean, ((x - mean) * y).sum(1)


def rows_and_columns(x, y):
    return x.sum(0), x.sum(1), (x * y).sum(0)


def overwritten_once_summed(x, y):
    total = x.sum(1)
    x.mul_(y)
    again = x.sum(1)
    x.sub_(total.unsqueeze(1))
    return total, again, x


def written_over_by_its_sum(x, y):
    column = x[:, 0]
    column.copy_((x * y).sum(1))
    return column, x.sum(1), y.sum(1)


def broadcast_rows(x, y):
    return (x * y[:1]).sum(1), (x + y[:1]).prod(1)


@pytest.mark.parametrize("size", [(64, 80), (300, 7), (1, 5)])
@pytest.mark.parametrize(
    "program",
    [
        sums_of_products,
        a_sum_and_what_follows,
        a_largest_and_a_sum,
        a_variance_of_a_mean,
        rows_and_columns,
        overwritten_once_summed,
        written_over_by_its_sum,
        broadcast_rows,
    ],
)
def test_sums_that_share_a_pass(program, size):
    x, y = values(*size).double(), values(*size).double() + 0.5
    expected = program(x.clone(), y.clone())
    got = program(x.to("tiny"), y.to("tiny"))
    torch.tiny.synchronize()
    for theirs, ours in zip(expected, got, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("program", [sums_of_products, a_sum_and_what_follows, a_largest_and_a_sum])
def test_sums_over_the_same_elements_take_one_kernel(program):
    x, y = (values(64, 80).to("tiny") + i for i in range(2))
    kept: list[tuple] = []
    taken = kernels_of(lambda: kept.append(program(x, y)))
    assert taken == 1 or not is_host(), taken
