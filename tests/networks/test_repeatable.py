"""The same trace on the same values gives the same bits: the second time, with numbers that became inputs since, and in
the automatic mode once PyTorch is asked for deterministic results."""

import random

import pytest
import torch
from torch import nn

from tests.differential import DEVICE, ON_TINY

pytestmark = pytest.mark.skipif(not ON_TINY, reason="about the ways of the device")


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x):
        return self.last(self.layer(x)[0])


NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)), (8, 16)),
    "cnn": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(8 * 8 * 8, 10)),
        ),
        (4, 3, 16, 16),
    ),
    "transformer": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.1), (4, 10, 32)),
    "lstm": (Recurrent, (4, 5, 16)),
}


def train(name: str) -> list[torch.Tensor]:
    """Ten steps with a rate that changes, from the same start."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model, x = make().to(DEVICE), torch.randn(shape).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    return [torch.stack(losses).cpu(), *(p.detach().cpu() for p in model.state_dict().values())]


def check_same(first: list[torch.Tensor], again: list[torch.Tensor]) -> None:
    for want, found in zip(first, again, strict=True):
        assert torch.equal(want, found)


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_compiled_steps_repeated_give_the_same_bits(name):
    with torch.tiny.compile_mode("always"):
        first = train(name)
        for _ in range(2):
            check_same(first, train(name))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_automatic_mode_repeats_where_results_must_be_deterministic(name):
    torch.use_deterministic_algorithms(True)
    try:
        with torch.tiny.compile_mode("auto"):
            first = train(name)
            for _ in range(3):
                check_same(first, train(name))
    finally:
        torch.use_deterministic_algorithms(False)


# Operators with a number, c, and another, d.
LINES = (
    *("x + {c}", "x * {c}", "{c} - x", "x / {c}", "{c} / x", "x.clamp(min={c})", "torch.add(x, y, alpha={c})"),
    *("torch.addcmul(x, y, y, value={c})", "torch.addcdiv(x, y, y.abs() + 1, value={c})", "torch.lerp(x, y, {c})"),
    *("torch.where(x > {c}, x, y)", "(x * {c}).exp()", "(x * {c}).sum(-1, keepdim=True) + y", "x.abs() ** {c}"),
    *("nn.functional.leaky_relu(x, {c})", "nn.functional.elu(x, {c})", "nn.functional.softplus(x, {c} + 0.1)"),
    *("x % ({c} + 0.1)", "x.mul({c}).add({d})", "torch.addmm(x, y, y, alpha={c}, beta={d})"),
    *("nn.functional.layer_norm(x, (8,), eps={c} + 1e-5)", "torch.cumsum(x * {c}, 0)", "x.masked_fill(x > 0, {c})"),
)
NUMBERS = (0.1, 0.3, 1 / 3, 2.0, 3.0, 0.9, 1e-3, 1.0, 0.0, 0.5, 5)


@pytest.mark.parametrize("seed", range(8))
def test_numbers_as_constants_and_as_inputs_round_alike(seed):
    choose = random.Random(seed)
    lines = [choose.choice(LINES) for _ in range(choose.randrange(2, 6))]
    dtype = choose.choice((torch.float32, torch.float64, torch.bfloat16))

    def run(numbers) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        x, y = (torch.randn(8, 8, generator=generator).to(dtype).to(DEVICE) for _ in range(2))
        for line, (c, d) in zip(lines, numbers, strict=True):
            x = eval(line.format(c=c, d=d), {"torch": torch, "nn": nn, "x": x, "y": y})
        return x.cpu()

    numbers, others = ([(choose.choice(NUMBERS), choose.choice(NUMBERS)) for _ in lines] for _ in range(2))
    with torch.tiny.compile_mode("always"):
        first = run(numbers)  # what it is compiled with
        run(others)  # what differs becomes an input
        assert torch.equal(first.nan_to_num(7), run(numbers).nan_to_num(7)), lines
