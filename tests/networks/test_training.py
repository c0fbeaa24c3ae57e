"""Training on the device follows the CPU's losses, and from the fourth step on replays without compiling."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests import models
from tests.differential import DEVICE, ON_TINY, Cost, both, data, flush, normal

STEPS = 20
LOSS = nn.functional.cross_entropy

# name -> (network, function from a step's number to its batch)
WORKLOADS = {
    "cnn": (models.cnn, lambda step: models.images(16, 28, seed=step % 4)),
    "lstm": (models.LSTMClassifier, lambda step: models.sequences(8, seed=step % 4)),
    "transformer": (models.Transformer, lambda step: models.next_tokens(4, seed=step % 4)),
}
SMALL = {
    "cnn": (models.tiny_cnn, lambda step: models.images(4, 8, seed=step)),
    "lstm": (lambda: models.LSTMClassifier(width=4), lambda step: models.sequences(3, length=5, seed=step)),
    "transformer": (lambda: models.Transformer(width=8, length=6), lambda step: models.next_tokens(2, 6, seed=step)),
}


def built(make) -> nn.Module:
    torch.manual_seed(0)
    return make()


def train(network, batch, device, steps=STEPS, make_optimizer=None, schedule=True, clip=1.0):
    """Losses of plain eager training: the loop every tutorial shows."""
    network = copy.deepcopy(network).to(device)
    optimizer = (make_optimizer or (lambda p: torch.optim.AdamW(p, lr=3e-3)))(network.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if schedule else None
    losses = []
    for step in range(steps):
        inputs, targets = (t.to(device) for t in batch(step))
        optimizer.zero_grad()
        loss = LOSS(network(inputs), targets)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
        losses.append(loss.item())
    return losses, network


def assert_close_losses(got, want):
    apart = [
        (step, g, w) for step, (g, w) in enumerate(zip(got, want, strict=True)) if not math.isclose(g, w, rel_tol=1e-3)
    ]
    assert not apart, f"losses (step, {DEVICE}, cpu) apart by more than a thousandth: {apart}"


@pytest.mark.parametrize("name,rate", [("cnn", 1e-4), ("cnn in float64", 3e-3), ("lstm", 3e-3), ("transformer", 3e-3)])
def test_losses_of_adamw_with_cosine_schedule_and_clipping_follow_the_cpu(name, rate):
    """The CNN at a high rate in float64: AdamW divides by the size of the gradient, so that rounding of small gradients
    grows from step to step. In float32 the CPU's own losses with and without oneDNN are 90 % apart at this rate."""
    make, batch = WORKLOADS[name.partition(" ")[0]]
    network = built(make)
    if name == "cnn in float64":
        network, batch = (
            network.double(),
            lambda step, of=batch: tuple(t.double() if t.is_floating_point() else t for t in of(step)),
        )
    optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=rate)  # noqa: E731
    want, trained = train(network, batch, "cpu", make_optimizer=optimizer)
    with Cost() as cost:
        got, on_device = train(network, batch, DEVICE, make_optimizer=optimizer)
    assert_close_losses(got, want)
    assert want[-1] < want[0], "the reference itself does not learn: the test shows nothing"
    cost.no_fallbacks()
    for (key, w), g in zip(trained.state_dict().items(), on_device.state_dict().values(), strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=2e-2, atol=2e-3, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("name", SMALL)
def test_new_learning_rates_compile_nothing_after_three_steps(name):
    make, batch = SMALL[name]
    network = built(make).to(DEVICE)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)

    def step(number):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 / (number + 1)
        inputs, targets = (t.to(DEVICE) for t in batch(number % 5))
        optimizer.zero_grad()
        loss = LOSS(network(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    for number in range(3):
        step(number)
    with Cost() as cost:
        losses = [step(number) for number in range(3, 53)]
    assert all(map(math.isfinite, losses))
    cost.expect(compiles=0)
    cost.no_fallbacks()
    if ON_TINY:
        assert cost.spent["replays"] >= 50


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "rmsprop_centered": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adamw_one_by_one": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_follows_the_cpu(name):
    network = built(models.mlp)
    batch = lambda step: models.vectors(8, seed=step % 3)  # noqa: E731
    want, _ = train(network, batch, "cpu", 10, OPTIMIZERS[name], schedule=False, clip=None)
    with Cost() as cost:
        got, _ = train(network, batch, DEVICE, 10, OPTIMIZERS[name], schedule=False, clip=None)
    assert_close_losses(got, want)
    cost.no_fallbacks()
    with Cost() as again:
        train(network, batch, DEVICE, 10, OPTIMIZERS[name], schedule=False, clip=None)
    again.expect(compiles=0)


SCHEDULES = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "one_cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=12),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_changes_numbers_and_never_the_program(name):
    network = built(models.mlp).to(DEVICE)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    scheduler = SCHEDULES[name](optimizer)

    def step(number):
        inputs, targets = (t.to(DEVICE) for t in models.vectors(8, seed=number))
        optimizer.zero_grad()
        LOSS(network(inputs), targets).backward()
        optimizer.step()
        scheduler.step()
        flush()

    for number in range(3):
        step(number)
    with Cost() as cost:
        for number in range(3, 10):
            step(number)
    cost.expect(compiles=0)


def test_gradient_accumulation_over_small_batches_follows_the_cpu():
    def losses(device):
        network = built(models.mlp).to(device)
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
        seen = []
        for step in range(6):
            for part in range(3):
                inputs, targets = (t.to(device) for t in models.vectors(4, seed=3 * step + part))
                loss = LOSS(network(inputs), targets) / 3
                loss.backward()
                seen.append(loss.item())
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        return seen

    assert_close_losses(losses(DEVICE), losses("cpu"))


def test_gradient_penalty_uses_double_backward():
    def program(device):
        network = built(models.mlp).to(device)
        inputs = models.vectors(4)[0].to(device).requires_grad_()
        out = network(inputs).pow(2).sum()
        (gradient,) = torch.autograd.grad(out, inputs, create_graph=True)
        penalty = (gradient.norm(dim=1) - 1).pow(2).mean()
        (out + penalty).backward()
        grads = [inputs.grad, *(parameter.grad for parameter in network.parameters())]
        return {"penalty": penalty, "grads": grads}

    both(program, schedules=("lazy",), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_gives_the_gradients_of_the_plain_network(reentrant):
    network = built(models.Transformer).to(DEVICE)
    tokens, targets = (t.to(DEVICE) for t in models.next_tokens(2))
    LOSS(network(tokens), targets).backward()
    plain = {key: p.grad.clone() for key, p in network.named_parameters()}
    network.zero_grad()
    x = network.tokens(tokens) + network.positions(torch.arange(12, device=DEVICE))
    for block in network.blocks:
        x = checkpoint(block, x, use_reentrant=reentrant)
    LOSS(network.head(network.norm(x)).flatten(0, 1), targets).backward()
    for key, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.grad.cpu(), plain[key].cpu(), msg=lambda m, key=key: f"{key}: {m}")


def test_checkpointed_dropout_recomputes_the_same_mask():
    torch.manual_seed(3)
    x = torch.ones(64, 64, device=DEVICE, requires_grad=True)
    y = checkpoint(lambda t: nn.functional.dropout(t, 0.5) * t, x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(x.grad.cpu() != 0, y.detach().cpu() != 0)


def test_dropout_is_reproducible_under_manual_seed_and_new_at_every_call():
    x = torch.ones(100, 100, device=DEVICE)
    layer = nn.Dropout(0.3)

    def draw():
        return layer(x).cpu()

    torch.manual_seed(7)
    first, second = draw(), draw()
    torch.manual_seed(7)
    assert torch.equal(draw(), first) and torch.equal(draw(), second)
    assert not torch.equal(first, second)
    assert abs((first == 0).float().mean().item() - 0.3) < 0.03
    kept = first[first != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.7))
    with Cost() as cost:
        third = draw()
    cost.expect(compiles=0)
    assert not torch.equal(third, first) and not torch.equal(third, second)


def test_dropout_in_evaluation_is_the_identity():
    x = data(4, 4, device=DEVICE)
    assert torch.equal(nn.Dropout(0.9).eval()(x).cpu(), x.cpu())


def test_random_numbers_differ_at_every_replay_and_repeat_under_a_seed():
    def draw():
        return [torch.rand(5, device=DEVICE).tolist(), torch.randn(5, device=DEVICE).tolist()]

    torch.manual_seed(1)
    a, b = draw(), draw()
    torch.manual_seed(1)
    assert draw() == a and draw() == b and a != b


def test_mean_of_losses_kept_on_the_device_is_right():
    network = built(models.mlp).to(DEVICE)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    total = torch.zeros((), device=DEVICE)
    singly = []
    for step in range(5):
        inputs, targets = (t.to(DEVICE) for t in models.vectors(8, seed=step))
        loss = LOSS(network(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        singly.append(loss.detach())
    assert math.isclose(total.item(), sum(loss.item() for loss in singly), rel_tol=1e-5)


def test_evaluation_between_training_steps_uses_the_current_weights():
    network = built(models.tiny_cnn)
    reference = copy.deepcopy(network)
    network.to(DEVICE)
    batch = models.images(4, 8)
    for net, device in ((network, DEVICE), (reference, "cpu")):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            net.train()
            optimizer.zero_grad()
            LOSS(net(batch[0].to(device)), batch[1].to(device)).backward()
            optimizer.step()
    network.eval(), reference.eval()
    with torch.no_grad():
        torch.testing.assert_close(network(batch[0].to(DEVICE)).cpu(), reference(batch[0]), rtol=1e-3, atol=1e-3)


def test_gradient_clipping_returns_and_applies_the_norm_of_the_cpu():
    def program(device):
        weights = [normal(3, 4, seed=i, device=device).requires_grad_() for i in range(3)]
        sum((w**3).sum() for w in weights).backward()
        yield nn.utils.clip_grad_norm_(weights, 0.5)
        nn.utils.clip_grad_value_(weights, 0.1)
        yield

    both(program)
