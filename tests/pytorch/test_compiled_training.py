"""Graphs of torch.compile's whose results need gradients: both passes are appended, and give what eager gives."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.differential import DEVICE, ON_TINY, Cost, flush, normal
from tests.pytorch.test_recorded_graphs import appended, fresh  # noqa: F401

pytestmark = pytest.mark.skipif(not ON_TINY, reason="about the device alone")
STEPS = 6


def compiled(function):
    return torch.compile(function, backend="tiny")


def mlp(*between: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), *between, nn.ReLU(), nn.Linear(16, 4))


class Training:
    """Steps of a network, eagerly on the CPU, eagerly on the device, and compiled on the device."""

    def __init__(self, network: nn.Module, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), loss=F.cross_entropy):
        self.networks = [network, copy.deepcopy(network).to(DEVICE), copy.deepcopy(network).to(DEVICE)]
        self.optimizers = [optimizer(n.parameters()) for n in self.networks]
        self.runs = [*self.networks[:2], compiled(self.networks[2])]
        self.loss = loss

    def step(self, which: int, i: int):
        network, optimizer, run = self.networks[which], self.optimizers[which], self.runs[which]
        device = next(network.parameters()).device
        x, y = normal(16, 8, seed=i, device=device), ((torch.arange(16) * (i + 1)) % 4).to(device)
        optimizer.zero_grad()
        loss = self.loss(run(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    def run(self, steps: int = STEPS) -> None:
        losses = [self.step(0, i) for i in range(steps)]
        got = []
        count = appended(lambda i: got.append(self.step(2, i)), steps)
        torch.testing.assert_close(got, losses, rtol=1e-4, atol=1e-5)
        one, other = ({k: v.cpu() for k, v in self.networks[n].state_dict().items()} for n in (2, 0))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        # Two calls at least are recorded: each later one is a forward and a backward pass.
        assert 2 * (steps - 3) <= count <= 2 * (steps - 2)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_steps_are_appended(name):
    Training(mlp(), OPTIMIZERS[name]).run()


def test_the_loss_in_the_graph():
    training = Training(mlp(), loss=lambda loss, y: loss)
    for i, network in enumerate(training.networks):

        def loss(x, network=network):
            return F.cross_entropy(network(x), ((torch.arange(16, device=x.device)) % 4))

        training.runs[i] = compiled(loss) if i == 2 else loss
    training.run()


def test_it_runs_the_programs_of_eager_steps():
    training = Training(mlp())
    for i in range(3):
        training.step(1, i)
    with Cost() as cost:
        for i in range(STEPS):
            training.step(2, i)
        flush()
    cost.expect(compiles=0)


def test_gradients_are_accumulated_and_graphs_retained():
    network = mlp()
    on_device = copy.deepcopy(network).to(DEVICE)
    run = compiled(on_device)
    for i in range(STEPS):
        for device, module in (("cpu", network), (DEVICE, run)):
            x = normal(16, 8, seed=i, device=device)
            result = module(x)
            result.square().mean().backward(retain_graph=i % 2 == 1)
            if i % 2:
                result.sum().backward()
    for one, other in zip(on_device.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)


def test_a_second_backward_pass_is_refused():
    run = compiled(mlp().to(DEVICE))
    for i in range(4):
        loss = run(normal(16, 8, seed=i, device=DEVICE)).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


@pytest.mark.parametrize("written", ["argument", "parameter", "result"])
def test_what_was_written_in_between_is_refused(written):
    weight = normal(4, 4, device=DEVICE).requires_grad_()
    f = compiled(lambda x, w: torch.sigmoid(x @ w))
    for i in range(5):
        x = normal(3, 4, seed=i, device=DEVICE)
        y = f(x, weight)
        if i < 4:
            y.sum().backward()
            continue
        with torch.no_grad():
            {"argument": x, "parameter": weight, "result": y}[written].add_(1)
        if written == "parameter":
            y.sum().backward()  # nothing reads it: the argument needs no gradient
            continue
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_dropout_draws_the_numbers_of_eager():
    training = Training(mlp(nn.Dropout(0.5)))
    states = []
    for which in (1, 2):
        torch.tiny.manual_seed(3)
        before = torch.tiny.stats()["graphs"]
        losses = [training.step(which, i) for i in range(STEPS)]
        states.append((losses, torch.tiny.get_rng_state().tolist(), torch.rand(3, device=DEVICE).tolist()))
    assert states[0] == states[1]
    assert torch.tiny.stats()["graphs"] - before >= 2 * (STEPS - 3)


def test_batch_norm_keeps_its_statistics():
    Training(mlp(nn.BatchNorm1d(16))).run()


def test_hooks_run_in_every_pass():
    seen = {"cpu": [], DEVICE: []}
    for device in seen:
        network = mlp().to(device)
        run = compiled(network) if device == DEVICE else network
        note = lambda g, to=seen[device]: to.append(g.sum().item())  # noqa: E731
        network[0].weight.register_hook(lambda g, note=note: note(g) or g * 2)
        network[0].bias.register_post_accumulate_grad_hook(lambda p, note=note: note(p.grad))
        for i in range(5):
            x = (normal(16, 8, seed=i, device=device).requires_grad_() * 1).requires_grad_()
            x.retain_grad()
            x.register_hook(note)
            y = run(x)
            y.register_hook(lambda g, note=note: note(g) or g * 3)
            before = len(seen[device])
            y.square().mean().backward()
            seen[device] += [x.grad.sum().item(), network[0].weight.grad.sum().item()]
            seen[device][before:] = sorted(seen[device][before:])  # the order of hooks is nobody's promise
    torch.testing.assert_close(seen[DEVICE], seen["cpu"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("first_orders", [0, 4])
def test_gradients_of_gradients(first_orders):
    """Through a graph whose argument comes from another call of it; it may have been kept before."""
    f = lambda x, w: torch.tanh(x @ w)  # noqa: E731
    outcomes = []
    for device, run in (("cpu", f), (DEVICE, compiled(f))):
        weight, found = normal(4, 4, device=device).requires_grad_(), []
        for i in range(first_orders + 3):
            x = normal(3, 4, seed=i, device=device).requires_grad_()
            result = run(run(x * 2, weight), weight).square().sum()
            if i >= first_orders:
                (gradient,) = torch.autograd.grad(result, x, create_graph=True)
                result = gradient.square().sum()
            weight.grad = None
            result.backward()
            found += [x.grad.cpu(), weight.grad.cpu()]
        outcomes.append(found)
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-4, atol=1e-5)


def test_a_graph_whose_argument_comes_from_it():
    """The gradient of a weight of one call does not count what comes by way of another."""
    f = lambda x, w: torch.tanh(x @ w)  # noqa: E731
    outcomes = []
    for device, run in (("cpu", f), (DEVICE, compiled(f))):
        weight, found = normal(4, 4, device=device).requires_grad_(), []
        for i in range(4):
            h = normal(3, 4, seed=i, device=device)
            for _ in range(10):
                h = run(h, weight)
            weight.grad = None
            h.sum().backward()
            found.append(weight.grad.cpu())
        outcomes.append(found)
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-4, atol=1e-5)


def test_gradients_of_some_results_and_for_some_inputs():
    f = lambda a, b: (torch.sin(a) * b, (a * b).exp())  # noqa: E731
    run = compiled(f)
    ways = [(1, 1, "ab"), (1, 0, "ab"), (0, 1, "b"), (1, 1, "a")]
    for i in range(20):
        first, second, wanted = ways[i % 4] if i > 6 else ways[0]
        outcomes = []
        for device, function in (("cpu", f), (DEVICE, run)):
            inputs = {n: normal(5, seed=i + k, device=device).requires_grad_() for k, n in enumerate("ab")}
            results = function(*inputs.values())
            total = first * results[0].sum() if first else 0
            total = total + results[1].square().sum() if second else total
            total.backward(inputs=[inputs[n] for n in wanted])
            outcomes.append([inputs[n].grad.cpu() if inputs[n].grad is not None else None for n in "ab"])
        for got, want in zip(outcomes[1], outcomes[0], strict=True):
            assert (got is None) == (want is None), i
            if want is not None:
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_the_same_gradient_for_two_results_and_expanded_ones():
    f = lambda a, b: (a * 2, a * b)  # noqa: E731
    run = compiled(f)
    for i in range(6):
        for total in (lambda x, y: (x + y).sum(), lambda x, y: (x * x).sum() + y.mean()):
            gradients = []
            for device, function in (("cpu", f), (DEVICE, run)):
                a, b = (normal(4, 3, seed=i + k, device=device).requires_grad_() for k in range(2))
                total(*function(a, b)).backward()
                gradients.append([a.grad.cpu(), b.grad.cpu()])
            torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


def test_frozen_parameters_and_modes():
    network = mlp()
    on_device = copy.deepcopy(network).to(DEVICE)
    run = compiled(on_device)
    for i in range(12):
        for parameter in (network[0].weight, on_device[0].weight):
            parameter.requires_grad_(i < 4 or i > 8)
        results = []
        for device, module in (("cpu", network), (DEVICE, run)):
            module.zero_grad()
            x = normal(16, 8, seed=i, device=device)
            if i % 3 == 2:
                with torch.inference_mode() if i % 2 else torch.no_grad():
                    results.append(module(x))
                assert not results[-1].requires_grad
            else:
                results.append(module(x))
                results[-1].square().sum().backward()
        torch.testing.assert_close(results[1].cpu(), results[0].cpu(), rtol=1e-4, atol=1e-5)
        for one, other in zip(on_device.parameters(), network.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            if one.grad is not None:
                torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-4)


def test_autocast():
    training = Training(mlp())

    def step(which, i):
        network, optimizer, run = training.networks[which], training.optimizers[which], training.runs[which]
        device = next(network.parameters()).device.type
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16 if i != 6 else torch.float16):
            result = run(normal(16, 8, seed=i, device=device))
        loss = result.float().square().mean()
        loss.backward()
        optimizer.step()
        return result.dtype, loss.item()

    got = []
    count = appended(lambda i: got.append(step(2, i)), 8)
    assert got == [step(1, i) for i in range(8)]
    assert count >= 6


def test_a_forward_pass_that_is_flushed_before_its_backward_pass():
    f = lambda x, w: torch.tanh(torch.tanh(x @ w) @ w)  # noqa: E731
    run, weights = compiled(f), [normal(4, 4, device=d).requires_grad_() for d in ("cpu", DEVICE)]
    for i in range(6):
        for weight, function in zip(weights, (f, run), strict=True):
            y = function(normal(3, 4, seed=i, device=weight.device), weight)
            y.sum().item()
            (y * y).sum().backward()
    torch.testing.assert_close(weights[1].grad.cpu(), weights[0].grad, rtol=1e-4, atol=1e-5)


def test_hooks_of_saved_tensors_and_forward_gradients_are_recorded():
    f = compiled(lambda x, w: torch.tanh(x @ w))
    weight = normal(4, 4, device=DEVICE).requires_grad_()
    for i in range(4):
        f(normal(3, 4, seed=i, device=DEVICE), weight).sum().backward()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t):
        f(normal(3, 4, device=DEVICE), weight).sum().backward()
    assert packed


def test_a_tensor_that_takes_a_result_in():
    """`h += block(h)`: what the node holds must not lead back to it."""
    import gc
    import weakref

    f = compiled(lambda x, w: torch.sin(x + w))
    weight = normal(4, device=DEVICE).requires_grad_()
    for i in range(5):
        h = normal(4, seed=i, device=DEVICE)
        h += f(h.clone(), weight)
        h.sum().backward()
    h = normal(4, device=DEVICE)
    h.add_(f(h, weight))
    gone = weakref.ref(h)
    gc.collect()
    del h
    assert gone() is None


def test_memory_does_not_grow():
    training = Training(mlp())
    for i in range(4):
        training.step(2, i)
    before = torch.tiny.memory_allocated()
    for i in range(20):
        training.step(2, i)
    assert torch.tiny.memory_allocated() <= before


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        RAN.append(1)
        return gradient * 3


def with_hook(x, w):
    h = x @ w
    h.register_hook(lambda g: RAN.append(1) or g * 2)
    return torch.tanh(h)


RAN: list[int] = []
RUN_PYTHON = {
    "a hook": with_hook,
    "a function of the user's": lambda x, w: Scaled.apply(x @ w),
    "a checkpoint": lambda x, w: torch.utils.checkpoint.checkpoint(
        lambda h: torch.tanh(torch.tanh(h @ w) @ w), x, use_reentrant=False
    ),
}


@pytest.mark.parametrize("name", RUN_PYTHON)
def test_backward_passes_that_run_python_do_so_every_time(name):
    found, runs = [], []
    for device, run in (("cpu", RUN_PYTHON[name]), (DEVICE, compiled(RUN_PYTHON[name]))):
        RAN.clear()
        for i in range(5):
            weight = normal(4, 4, device=device).requires_grad_()
            run(normal(3, 4, seed=i, device=device), weight).sum().backward()
        found.append(weight.grad.cpu())
        runs.append(len(RAN))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert runs[0] == runs[1] or name == "a function of the user's"  # dynamo traces its backward pass


def test_compiled_autograd_keeps_nothing():
    function = compiled(lambda x, w: torch.tanh(x @ w))
    weight = normal(4, 4, device=DEVICE).requires_grad_()
    with torch._dynamo.config.patch(compiled_autograd=True):
        count = appended(lambda i: function(normal(3, 4, seed=i, device=DEVICE), weight))
    assert count == 0
