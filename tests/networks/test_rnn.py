"""Recurrent layers: every kind and shape of them against the CPU, forward and backward, and what a step costs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from tests.differential import DEVICE, Cost, flush, same_error

KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
on_every_kind = pytest.mark.parametrize("kind", KINDS)


def normal(*size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def make(kind: str, width: int = 5, given: int = 3, dtype: torch.dtype = torch.float64, **options) -> nn.RNNBase:
    torch.manual_seed(0)
    return KINDS[kind](given, width, **options).to(dtype)


def states_of(layer: nn.RNNBase, batch: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    widths = [layer.proj_size or layer.hidden_size, layer.hidden_size][: 2 if isinstance(layer, nn.LSTM) else 1]
    return tuple(normal(count, batch, width, seed=7 + i, dtype=dtype) for i, width in enumerate(widths))


def run(layer: nn.RNNBase, x, states, device: str, used: str = "all") -> dict[str, torch.Tensor | None]:
    """Everything a layer computes on a device, gradients included. `used`: which results the loss depends on."""
    layer = copy.deepcopy(layer).to(device)
    states = tuple(s.detach().clone().to(device).requires_grad_() for s in states)
    packed = isinstance(x, PackedSequence)
    leaf = (x.data if packed else x).detach().clone().to(device).requires_grad_()
    given = leaf
    if packed:
        given = PackedSequence(leaf, x.batch_sizes, x.sorted_indices.to(device), x.unsorted_indices.to(device))
    hidden = (states if isinstance(layer, nn.LSTM) else states[0]) if states else None
    output, last = layer(given, hidden)
    output = output.data if packed else output
    results = {"output": output, **{f"last {i}": s for i, s in enumerate(last if isinstance(last, tuple) else (last,))}}
    chosen = [value for name, value in results.items() if used in ("all", name)]
    loss = sum((value * torch.linspace(-1, 1, value.numel()).view(value.shape).to(value)).sum() for value in chosen)
    loss.backward()
    gradients = {f"grad of {name}": p.grad for name, p in layer.named_parameters()}
    gradients |= {f"grad of state {i}": s.grad for i, s in enumerate(states)}
    return results | {"grad of input": leaf.grad} | gradients


def compare(layer: nn.RNNBase, x, states=(), used: str = "all", **tolerance) -> None:
    reference, ours = (run(layer, x, states, device, used) for device in ("cpu", DEVICE))
    for name, want in reference.items():
        got = ours[name]
        assert (want is None) == (got is None), name
        if want is not None:
            assert got.size() == want.size() and got.stride() == want.stride(), name
            torch.testing.assert_close(
                got.detach().cpu(), want.detach(), msg=lambda m, n=name: f"{n}: {m}", **tolerance
            )


@on_every_kind
@pytest.mark.parametrize(
    "layers,bidirectional,batch_first,bias",
    [(1, 0, 0, 1), (1, 0, 1, 0), (1, 1, 0, 1), (2, 0, 1, 1), (2, 1, 0, 0), (2, 1, 1, 1)],
)
def test_shapes(kind, layers, bidirectional, batch_first, bias):
    options = {"bidirectional": bool(bidirectional), "batch_first": bool(batch_first), "bias": bool(bias)}
    layer = make(kind, num_layers=layers, **options)
    x = normal(3, 2, 3) if batch_first else normal(2, 3, 3)
    compare(layer, x, states_of(layer, 3))
    if bias and layers == 1 + bidirectional:  # without a state, PyTorch hands in zeros: what is compiled is the same
        with torch.tiny.compile_mode("never" if layers > 1 else "always"):
            compare(layer, x)


@on_every_kind
def test_one_step_one_sequence(kind):
    layer = make(kind)
    compare(layer, normal(1, 1, 3), states_of(layer, 1))
    compare(layer, normal(3, 3))  # not batched


@on_every_kind
@pytest.mark.parametrize("used", ["output", "last 0", "last 1"])
def test_gradients_of_some_results(kind, used):
    if used == "last 1" and kind != "lstm":
        pytest.skip("has one state")
    layer = make(kind, num_layers=2, bidirectional=True)
    compare(layer, normal(2, 3, 3), states_of(layer, 3), used)


@on_every_kind
@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_sizes_whose_steps_are_laid_side_by_side(kind, dtype, tolerance):
    layer = make(kind, 64, 16, dtype, bidirectional=True, num_layers=2)
    compare(layer, normal(3, 33, 16, dtype=dtype), states_of(layer, 33, dtype), rtol=tolerance, atol=100 * tolerance)


@on_every_kind
def test_strided_input(kind):
    layer = make(kind, 64, 16)
    whole = normal(16, 40, 5)
    compare(layer, whole.permute(2, 1, 0)[::2, 3:36])


@on_every_kind
def test_values_read_between_forward_and_backward(kind):
    found = []
    for device in ("cpu", DEVICE):
        layer = make(kind, 64, 16, num_layers=2).to(device)
        first = normal(2, 1, 64).to(device).requires_grad_()
        state = first.expand(2, 40, 64)
        output, _ = layer(normal(3, 40, 16).to(device), (state, state) if kind == "lstm" else state)
        loss = output.square().sum()
        loss.item()
        loss.backward()
        found.append([loss, output, first.grad, *(p.grad for p in layer.parameters())])
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got.detach().cpu(), want.detach())


@on_every_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types(kind, dtype):
    layer, x = make(kind, 64, 16, dtype), normal(3, 40, 16, dtype=torch.float32).to(dtype)
    want, got = layer(x)[0], copy.deepcopy(layer).to(DEVICE)(x.to(DEVICE))[0]
    torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=2e-2, atol=1e-2)


def test_projections():
    layer = make("lstm", proj_size=2, num_layers=2, bidirectional=True)
    compare(layer, normal(2, 3, 3), states_of(layer, 3))


@on_every_kind
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_sequences(kind, bidirectional):
    layer = make(kind, num_layers=2, bidirectional=bidirectional)
    compare(layer, pack_padded_sequence(normal(3, 3, 3), torch.tensor([1, 3, 2]), enforce_sorted=False))


@on_every_kind
def test_cells(kind):
    torch.manual_seed(0)
    cells = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "tanh": nn.RNNCell}
    cell = (cells.get(kind) or (lambda *sizes: nn.RNNCell(*sizes, nonlinearity="relu")))(3, 5).double()
    results = []
    for device in ("cpu", DEVICE):
        own, x, state = copy.deepcopy(cell).to(device), normal(3, 2, 3).to(device), None
        for t in range(3):
            state = own(x[t], state)
        last = state if isinstance(state, tuple) else (state,)
        sum(s.sum() for s in last).backward()
        results.append([*last, *(p.grad for p in own.parameters())])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got.cpu(), want)


@on_every_kind
def test_gradients_of_gradients(kind):
    """The state depends on the input: gradients must not take both ways at once."""
    found = []
    for device in ("cpu", DEVICE):
        layer, x = make(kind, bidirectional=True).to(device), normal(2, 2, 3).to(device).requires_grad_()
        state = torch.cat([x, x[:, :, :2]], 2)
        output, last = layer(x, (state, state * 2) if kind == "lstm" else state)
        loss = output.pow(2).sum() + (last[1] if kind == "lstm" else last).exp().sum()
        wanted = [x, *layer.parameters()]
        first = torch.autograd.grad(loss, wanted, create_graph=True)
        second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), wanted, allow_unused=True)
        found.append([g if g is None else g.detach().cpu() for g in (*first, *second)])
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def test_gradients_are_those_of_differences():
    layer = make("lstm", 2, 2).to(DEVICE)
    arguments = [normal(2, 1, 2), *states_of(layer, 1), *(p.detach() for p in layer.parameters())]
    arguments = [a.to(DEVICE).requires_grad_() for a in arguments]

    def function(x, hx, cx, *parameters):
        output, hy, cy = torch.lstm(x, [hx, cx], parameters, True, 1, 0.0, True, False, False)
        flush()  # two backward passes are compared digit by digit: neither is compiled together with this one
        return output, hy, cy

    assert torch.autograd.gradcheck(function, arguments, fast_mode=True)
    with torch.tiny.compile_mode("never"):  # compiled ones are the CPU's: test_gradients_of_gradients
        assert torch.autograd.gradgradcheck(function, arguments, fast_mode=True)


@on_every_kind
def test_without_gradients(kind):
    layer, x = make(kind, num_layers=2), normal(4, 2, 3)
    with torch.no_grad():
        want, got = layer(x)[0], copy.deepcopy(layer).to(DEVICE)(x.to(DEVICE))[0]
        torch.testing.assert_close(got.cpu(), want)
    with torch.inference_mode():
        torch.testing.assert_close(copy.deepcopy(layer).to(DEVICE)(x.to(DEVICE))[0].cpu(), want)


def test_function_transforms():
    x, found = normal(2, 2, 3), []
    for device in ("cpu", DEVICE):
        layer = make("lstm").to(device)
        found.append(torch.func.grad(lambda v, layer=layer: layer(v)[0].sum())(x.to(device)).cpu())
    torch.testing.assert_close(found[1], found[0])


def test_dropout_between_layers():
    layer = make("lstm", 64, 16, num_layers=2, dropout=0.5).to(DEVICE)
    x = normal(3, 32, 16).to(DEVICE)
    assert not torch.equal(layer(x)[0].cpu(), layer(x)[0].cpu())
    layer.eval()
    torch.testing.assert_close(layer(x)[0].cpu(), copy.deepcopy(layer).cpu()(x.cpu())[0])


def test_a_weight_changed_in_place_before_the_gradient():
    layer = make("lstm").to(DEVICE)
    output = layer(normal(4, 2, 3).to(DEVICE))[0]
    with torch.no_grad():
        layer.weight_hh_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


BAD = {
    "input size": lambda d: make("lstm").to(d)(torch.zeros(4, 2, 4, dtype=torch.float64, device=d)),
    "input rank": lambda d: make("gru").to(d)(torch.zeros(4, dtype=torch.float64, device=d)),
    "state size": lambda d: make("gru").to(d)(normal(4, 2, 3).to(d), normal(1, 2, 4).to(d)),
    "batch size": lambda d: make("tanh").to(d)(normal(4, 2, 3).to(d), normal(1, 3, 5).to(d)),
    "no steps": lambda d: make("gru").to(d)(normal(0, 2, 3).to(d)),
    "dtype of the input": lambda d: make("gru").to(d)(torch.zeros(4, 2, 3, device=d)),
    "dtype of the states": lambda d: make("lstm").to(d)(normal(4, 2, 3).to(d), 2 * (torch.zeros(1, 2, 5, device=d),)),
    "missing weights": lambda d: torch.gru(
        normal(4, 2, 3).to(d), normal(1, 2, 5).to(d), [p.detach() for p in make("gru").to(d).parameters()][:3],
        True, 1, 0.0, False, False, False,
    ),
    "missing states": lambda d: torch.lstm(
        normal(4, 2, 3).to(d), [normal(1, 2, 5).to(d)], [p.detach() for p in make("lstm").to(d).parameters()],
        True, 1, 0.0, False, False, False,
    ),
    "states of other layers": lambda d: torch.gru(
        normal(4, 2, 3).to(d), normal(2, 2, 5).to(d), [p.detach() for p in make("gru").to(d).parameters()],
        True, 1, 0.0, False, False, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case):
    same_error(BAD[case])


@pytest.mark.parametrize("kind,most", [("lstm", 5), ("gru", 7), ("tanh", 5)])
def test_a_training_step_takes_few_kernels_and_compiles_once(kind, most):
    steps, batch, width = 6, 32, 64
    layer = make(kind, width, 48, torch.float32, batch_first=True).to(DEVICE)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = normal(batch, steps, 48, dtype=torch.float32).to(DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        layer(x)[0][:, -1].square().mean().backward()
        optimizer.step()

    for _ in range(2):
        step()
    with Cost() as cost:
        step()
    cost.expect(compiles=0, flushes=1, replays=1)
    cost.at_most(kernels=most * steps + 12, nodes=24)
    cost.no_fallbacks()
