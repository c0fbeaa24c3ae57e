"""Convolutions of few places and many channels are matrix products (trace/convolutions.py): same values, same
gradients, and the operators that are meant to compute them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.differential import DEVICE, SCHEDULES, Cost, both, data, flush
from torch_tinygrad.trace.convolutions import BACKWARD, FORWARD, as_products
from torch_tinygrad.trace.nodes import Node, Number, Region, Storage, Trace

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

# name -> (input, weight, stride, padding, dilation, whether forward, input, and weights are products)
CASES = {
    "pointwise_by_steps": ((2, 32, 8, 8), (48, 32, 1, 1), (2, 2), (0, 0), (1, 1), (True, True, True)),
    "pointwise_by_uneven_steps": ((2, 24, 7, 9), (40, 24, 1, 1), (3, 2), (0, 0), (1, 1), (True, True, True)),
    "pointwise_few_places": ((2, 96, 4, 4), (64, 96, 1, 1), (1, 1), (0, 0), (1, 1), (True, True, True)),
    "pointwise_line": ((2, 64, 9), (64, 64, 1), (2,), (0,), (1,), (True, True, True)),
    "pointwise_volume": ((2, 32, 3, 4, 4), (48, 32, 1, 1, 1), (1, 2, 2), (0, 0, 0), (1, 1, 1), (True, True, True)),
    "pointwise_many_places": ((4, 16, 16, 16), (16, 16, 1, 1), (1, 1), (0, 0), (1, 1), (False, False, False)),
    "pointwise_many_places_by_steps": ((4, 16, 32, 16), (16, 16, 1, 1), (2, 2), (0, 0), (1, 1), (False, False, False)),
    "pointwise_padded": ((2, 64, 4, 4), (64, 64, 1, 1), (2, 2), (1, 1), (1, 1), (True, True, True)),
    "many_weights": ((2, 32, 2, 2), (64, 32, 3, 3), (1, 1), (1, 1), (1, 1), (True, True, True)),
    "many_weights_by_steps": ((2, 32, 5, 4), (64, 32, 3, 3), (2, 2), (1, 1), (1, 1), (True, True, True)),
    "many_weights_dilated": ((2, 32, 5, 5), (64, 32, 3, 2), (2, 1), (1, 2), (2, 2), (True, True, True)),
    "few_weights": ((4, 16, 12, 12), (16, 16, 3, 3), (1, 1), (1, 1), (1, 1), (False, False, False)),
}
FLOATS = {torch.float32: dict(rtol=1e-4, atol=1e-3), torch.float64: dict(rtol=1e-10, atol=1e-10)}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, dtype):
    """In double precision, of tensors with channels last."""
    x_size, w_size, stride, padding, dilation, _ = CASES[name]
    has_channels_last = dtype is torch.float64 and len(x_size) == 4
    layout = torch.channels_last if has_channels_last else torch.contiguous_format

    def program(device):
        x, w = (data(*size, dtype=dtype, seed=len(size), device=device) for size in (x_size, w_size))
        x, w = (t.to(memory_format=layout).requires_grad_() for t in (x, w))
        bias = data(w_size[0], dtype=dtype, device=device).requires_grad_()
        y = CONVOLVE[len(stride)](x, w, bias, stride, padding, dilation)
        plain = CONVOLVE[len(stride)](x, w, None, stride, padding, dilation)
        (y.square().sum() + (plain * 2).sum()).backward()
        yield "values", y, plain
        yield "gradients", x.grad, w.grad, bias.grad

    both(program, schedules=SCHEDULES[:1], **FLOATS[dtype])


def test_of_slices_and_into_them():
    def program(device):
        x = data(2, 80, 9, 9, device=device)
        w = data(64, 96, 1, 1, device=device)
        out = torch.zeros(3, 64, 4, 8, device=device)
        out[:2, :, :, ::2] = F.conv2d(x[:, 8:72, 1:, ::2], w[:, 16:80], stride=(2, 1))[..., :4]
        yield "into", out
        y = F.conv2d(x[:, ::2, :2, :2], w[:, :40], stride=2)
        x.add_(1)
        w.mul_(2)
        yield "before_writes", y

    both(program, rtol=1e-4, atol=1e-3)


def contiguous(storage: int, size: tuple[int, ...]) -> Region:
    return Region(storage, torch.float32, size, torch.empty(size, device="meta").stride(), 0)


def nodes_of(name: str) -> tuple[Node, Node, list[Storage]]:
    """The convolution, its gradients, and the storages of both."""
    x_size, w_size, stride, padding, dilation, _ = CASES[name]
    shapes = torch.empty(x_size, device="meta"), torch.empty(w_size, device="meta")
    y_size = CONVOLVE[len(stride)](*shapes, None, stride, padding, dilation).shape
    x, w, y = (contiguous(i, tuple(size)) for i, size in enumerate((x_size, w_size, y_size)))
    grad_x, grad_w = x.at(storage=3), w.at(storage=4)
    settings = (*([Number(n) for n in v] for v in (stride, padding, dilation)), Number(False), [Number(0)], Number(1))
    forward = Node(FORWARD, (x, w, None, *settings), (y,))
    mask = [Number(True), Number(True), Number(False)]
    backward = Node(BACKWARD, (y, x, w, None, *settings, mask), (grad_x, grad_w, None))
    return forward, backward, [Storage(r.numel * 4, True, True) for r in (x, w, y, x, w)]


def operators(nodes: list[Node], storages: list[Storage]) -> list[str]:
    return [n.op for n in as_products(Trace(nodes, storages), lambda node: True).nodes]


@pytest.mark.parametrize("name", CASES)
def test_which_are_products(name):
    forward, grad_x, grad_w = CASES[name][-1]
    convolution, gradients, storages = nodes_of(name)
    recorded = operators([convolution], storages)
    assert ("aten::mm" in recorded) == forward and (FORWARD in recorded) == (not forward)
    recorded = operators([gradients], storages)
    assert recorded.count("aten::mm") == grad_x + grad_w
    assert (BACKWARD in recorded) == (not grad_x)


def test_what_places_see_is_laid_out_once():
    """For the convolution and its gradients, unless the input is written in between."""
    convolution, gradients, storages = nodes_of("many_weights_by_steps")
    assert operators([convolution, gradients], storages).count("aten::im2col") == 1
    x = convolution.args[0]
    write = Node("aten::add.Tensor", (x, x, Number(1)), (x,))
    assert operators([convolution, write, gradients], storages).count("aten::im2col") == 2


def test_inputs_and_weights_that_are_written_in_between():
    def program(device):
        x, w = data(2, 32, 2, 2, device=device), data(64, 32, 3, 3, device=device)
        w = w.to(memory_format=torch.channels_last)
        first = F.conv2d(x, w, padding=1)
        w.mul_(2)
        second = F.conv2d(x, w, padding=1)
        x[:, 3:5].add_(1)
        third = F.conv2d(x, w, padding=1)
        yield first, second, third

    both(program, rtol=1e-4, atol=1e-3)


def test_groups_transposes_and_halves_stay_convolutions():
    def program(device):
        x = data(2, 32, 6, 6, device=device)
        yield "groups", F.conv2d(x, data(64, 8, 1, 1, device=device), stride=2, groups=4)
        yield "transposed", F.conv_transpose2d(x, data(32, 64, 1, 1, device=device), stride=2)
        yield "half", F.conv2d(x.bfloat16(), data(64, 32, 1, 1, device=device).bfloat16(), stride=2)

    both(program, rtol=2e-2, atol=2e-2)


def test_replays_follow_their_weights():
    """The copies of weights that a program lays out for itself are of this run's weights."""
    weights, images = torch.nn.Conv2d(16, 32, 3, padding=1), data(8, 16, 12, 12)
    losses = {}
    for device in ("cpu", "tiny"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 8, 3))
        model[0].load_state_dict(weights.state_dict())
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses[device] = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(images.to(device)).square().mean()
            loss.backward()
            optimizer.step()
            losses[device].append(loss.item())
        flush()
    torch.testing.assert_close(torch.tensor(losses["tiny"]), torch.tensor(losses["cpu"]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("channels", "size", "outputs", "kernel"), [(1, 64, 1, 3), (1, 61, 1, 3), (3, 40, 16, 1), (16, 30, 1, 3)]
)
def test_filters_are_kernels_that_fuse(channels, size, outputs, kernel):
    """They sum up few products, or leave one channel: a library works on blocks of channels."""
    x, weight = data(2, channels, size, size), data(outputs, channels, kernel, kernel, seed=1)

    def program(x, weight):
        return (torch.conv2d(x * 2, weight, padding=kernel // 2) > 3).float()

    ours = [t.to(DEVICE) for t in (x, weight)]
    flush()
    with Cost() as cost:
        result = program(*ours)
        flush()
    torch.testing.assert_close(result.cpu(), program(x, weight))
    cost.at_most(kernels=1)
