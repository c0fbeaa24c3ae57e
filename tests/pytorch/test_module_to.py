"""`module.to("tiny")` moves parameters as on every device of PyTorch's own: the tensors stay the same objects.

The CPU has no other device to move to. It is the reference all the same: moving to another dtype goes the same way, so
every program here converts both, and what it finds out must be equal.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from tests.differential import DEVICE, assert_same_error, both, data, leaves, normal, raised_by

WIDE = torch.float64


class Tied(nn.Module):
    """An embedding whose weights are those of the last layer, a frozen parameter, a buffer, and one parameter twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.full((4,), 1.5))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.tokens.weight
        self.register_buffer("shift", torch.arange(4.0))
        self.alias = self.scale

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.tokens(places)) * self.scale + self.alias * self.frozen + self.shift)


PLACES = torch.tensor([0, 3, 6, 3, 1])


def loss_of(model: nn.Module, device: str) -> torch.Tensor:
    return model(PLACES.to(device)).square().mean()


def moved(model: nn.Module, device: str) -> nn.Module:
    return model.to(device, WIDE)


@contextmanager
def future(name: str) -> Iterator[None]:
    """One of the switches of `torch.__future__`, on for a while."""
    switch = getattr(torch.__future__, f"set_{name}_module_params_on_conversion")
    before = getattr(torch.__future__, f"get_{name}_module_params_on_conversion")()
    switch(True)
    try:
        yield
    finally:
        switch(before)


def same_facts(facts: Callable[[str], Any]) -> Any:
    """What a program found out, which must be the same on both devices."""
    want, got = facts("cpu"), facts(DEVICE)
    assert got == want
    return want


def same_values(program: Callable[[str], Iterator[Any]]) -> None:
    """All that a program yields has the same values on both devices. How often something was written may differ: what
    had no dtype to change has moved on one device alone."""
    for want, got in zip(program("cpu"), program(DEVICE), strict=True):
        cpu, tiny = dict(leaves(want)), dict(leaves(got))
        assert list(cpu) == list(tiny)
        for name, value in cpu.items():
            there = tiny[name].detach().cpu() if isinstance(value, torch.Tensor) else tiny[name]
            torch.testing.assert_close(there, value.detach() if isinstance(value, torch.Tensor) else value)


def test_an_optimizer_made_before_the_move_trains_the_moved_parameters():
    def program(device):
        model = Tied()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        moved(model, device)
        for _ in range(2):
            optimizer.zero_grad()
            loss = loss_of(model, device)
            loss.backward()
            optimizer.step()
            yield loss, model

    same_values(program)
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    moved(model, DEVICE)
    before = model.scale.detach().clone()
    loss_of(model, DEVICE).backward()
    optimizer.step()
    assert not torch.equal(model.scale, before)


def test_parameters_keep_their_identity_and_ties():
    def facts(device):
        model = Tied()
        names = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
        grads = {}
        loss_of(model, "cpu").backward()
        grads = {name: id(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        result = moved(model, device)
        after = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
        after_grads = {name: id(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        return (
            result is model,
            names == after,
            grads == after_grads,
            model.out.weight is model.tokens.weight,
            model.alias is model.scale,
            [(n, p.requires_grad, p.is_leaf, type(p).__name__, p._version) for n, p in model.named_parameters()],
            [(n, b.requires_grad, type(b).__name__) for n, b in model.named_buffers()],
        )

    found = same_facts(facts)
    assert all(found[:5])


def test_everything_is_where_it_was_moved():
    model = Tied()
    loss_of(model, "cpu").backward()
    model.to(DEVICE)
    for tensor in (*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)):
        assert tensor.device.type == DEVICE.split(":")[0]
    model.to("cpu")
    for tensor in (*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)):
        assert tensor.device.type == "cpu"


def test_there_and_back_again():
    def facts(device):
        model = Tied()
        before = {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}
        loss_of(model, "cpu").backward()
        model.to(device).to("cpu").to(device).half().to("cpu").float()
        return [
            id(p) == before[n][0] and torch.allclose(p, before[n][1], rtol=1e-3) for n, p in model.named_parameters()
        ]

    assert all(same_facts(facts))


def test_hooks_stay():
    def facts(device):
        model, calls = Tied(), []
        model.scale.register_hook(lambda grad: calls.append(("hook", grad.dtype)))
        model.scale.register_post_accumulate_grad_hook(lambda p: calls.append(("after", p is model.scale)))
        model.register_forward_hook(lambda *_: calls.append(("forward",)))
        model.register_full_backward_hook(lambda *_: calls.append(("backward",)))
        moved(model, device)
        loss_of(model, device).backward()
        return calls

    assert ("hook", WIDE) in same_facts(facts)


def test_a_tensor_takes_the_data_of_another_device():
    def program(device):
        t = data(3)
        t.data = data(2, 2, device=device, dtype=WIDE)
        t.add_(1)
        yield t
        t.data = t.data.t()[:1]
        t.mul_(2)
        yield t

    both(program)


def test_data_that_cannot_be_taken_is_refused_alike():
    def refusal(device):
        p = nn.Parameter(torch.ones(2))
        error = raised_by(lambda: setattr(p, "data", data(2, device=device, dtype=torch.int64)))
        return error, p

    (cpu, _), (tiny, kept) = refusal("cpu"), refusal(DEVICE)
    assert_same_error(cpu, tiny)
    assert kept.device.type == "cpu"
    sparse = raised_by(lambda: setattr(torch.ones(2), "data", torch.ones(2).to_sparse()))
    here = raised_by(lambda: setattr(torch.ones(2, device=DEVICE), "data", torch.ones(2).to_sparse()))
    assert_same_error(sparse, here)
    assert not torch._has_compatible_shallow_copy_type(torch.ones(2, device=DEVICE), torch.ones(2, device="meta"))
    assert torch._has_compatible_shallow_copy_type(torch.ones(2, device=DEVICE), torch.ones(2))


def test_a_gradient_of_another_device_is_refused():
    p = nn.Parameter(torch.ones(2))
    with pytest.raises(RuntimeError, match="on the same device"):
        p.grad = torch.ones(2, device=DEVICE)
    p = nn.Parameter(torch.ones(2, device=DEVICE))
    with pytest.raises(RuntimeError, match="on the same device"):
        p.grad = torch.ones(2)


@pytest.mark.parametrize("switch", ["overwrite", "swap"])
def test_switches_of_the_future(switch):
    def facts(device):
        with future(switch):
            model = Tied()
            scale, weight = model.scale, model.out.weight
            moved(model, device)
            loss_of(model, device).backward()
            moved(model, device).half()
            return (
                model.scale is scale,
                model.out.weight is weight,
                model.out.weight is model.tokens.weight,
                model.alias is model.scale,
                (scale.dtype, scale.device.type == device, scale.grad is None),
                [(n, p.requires_grad, p.is_leaf, p.grad is None) for n, p in model.named_parameters()],
            )

    reference, tested = facts("cpu"), facts(DEVICE)
    if switch == "swap":
        assert reference == tested and tested[0]
    else:  # the old parameters stay where they were
        assert reference[:4] == tested[:4] and reference[5:] == tested[5:] and not tested[0]


def test_tensors_swap():
    def program(device):
        a, b = data(3, seed=1, device=device), data(2, 2, seed=2, device=device, dtype=WIDE)
        a.add_(1)
        torch.utils.swap_tensors(a, b)
        b.mul_(2)
        yield a, b
        p = nn.Parameter(normal(3, device=device))
        q = nn.Parameter(normal(2, seed=1, device=device))
        torch.utils.swap_tensors(p, q)
        (p.sum() * q.sum()).backward()
        yield p, q

    both(program)
    here, there = torch.ones(2, device=DEVICE), torch.zeros(3)
    torch.utils.swap_tensors(here, there)
    assert (here.device.type, there.device.type) == ("cpu", DEVICE) and there.cpu().tolist() == [1, 1]


def test_empty_modules_on_the_device():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.to_empty(device=DEVICE)
    reference = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.load_state_dict(reference.state_dict())
    assert all(p.device.type == DEVICE.split(":")[0] for p in (*model.parameters(), *model.buffers()))
    torch.testing.assert_close(model.cpu().state_dict(), reference.state_dict())
    kept = nn.Linear(3, 4)
    weight = kept.weight
    kept.to_empty(device=DEVICE)
    assert kept.weight is weight and weight.device.type == DEVICE.split(":")[0]


def test_lazy_modules():
    def program(device):
        model = moved(nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyBatchNorm1d()), device)
        weight = model[0].weight
        model(normal(5, 4, device=device, dtype=WIDE))
        model[2].reset_running_stats()
        torch.manual_seed(0)
        for p in model.parameters():
            p.data = torch.randn(p.shape).to(device, WIDE)
        y = model(normal(5, 4, device=device, dtype=WIDE))
        y.sum().backward()
        yield y, model, int(weight is model[0].weight)

    same_values(program)


def test_recurrent_layers_find_their_moved_weights():
    def program(device):
        torch.manual_seed(0)
        model = nn.LSTM(3, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        moved(model, device)
        for _ in range(2):
            y, _ = model(normal(3, 2, 3, device=device, dtype=WIDE))
            y.square().sum().backward()
            optimizer.step()
            yield y, model

    same_values(program)


def test_parametrized_modules():
    def program(device):
        torch.manual_seed(0)
        model = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        moved(model, device)
        model(normal(5, 3, device=device, dtype=WIDE)).square().sum().backward()
        optimizer.step()
        yield model, model.weight

    both(program)


def test_copies_and_saved_states_after_the_move():
    def program(device):
        model = moved(Tied(), device)
        loss_of(model, device).backward()
        other = copy.deepcopy(model)
        tied = other.out.weight is other.tokens.weight and other.out.weight is not model.out.weight
        with torch.no_grad():
            other.scale.mul_(2)
        yield model, other, int(tied)
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        buffer.seek(0)
        loaded = torch.load(buffer)
        other.load_state_dict(loaded)
        yield other
        fresh = Tied()
        fresh.load_state_dict(loaded, assign=True)
        given = int(fresh.scale.data_ptr() == loaded["scale"].data_ptr())
        parameters = int(isinstance(fresh.scale, nn.Parameter))
        yield fresh, given, parameters

    same_values(program)


def test_values_recorded_before_the_move_are_computed():
    def program(device):
        model = nn.Linear(3, 3, bias=False)
        with torch.no_grad():
            model.weight.copy_(data(3, 3))
        moved(model, device)
        with torch.no_grad():
            model.weight.add_(1)
        kept = model.weight.data
        model.to("cpu")
        with torch.no_grad():
            model.weight.mul_(3)
        moved(model, device)
        yield model, kept

    def values(device):
        *_, (model, kept) = program(device)
        return model.weight.tolist(), kept.tolist()

    want = (data(3, 3) + 1).double()
    assert values(DEVICE) == ((want * 3).tolist(), want.tolist())


def test_a_graph_made_before_the_move_is_refused_or_right():
    """As where a dtype changes under a graph: an error at most, and the next graph is right."""
    model = Tied()
    loss = loss_of(model, "cpu")
    model.to(DEVICE)
    error = raised_by(loss.backward)
    assert error is None or isinstance(error, RuntimeError)
    model.zero_grad()
    loss_of(model, DEVICE).backward()
    assert model.scale.grad.device.type == DEVICE.split(":")[0]
