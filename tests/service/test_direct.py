"""A trace that runs directly, node by node through ATen, gives what the CPU gives and what a compiled one gives."""

import pytest
import torch
from torch import nn

from tests.differential import both
from torch_tinygrad.choice import is_host

WAYS = ("never", "always")


@pytest.fixture(params=WAYS)
def way(request):
    with torch.tiny.compile_mode(request.param):
        yield request.param


def both_ways(program):
    """What the program gives when it runs directly and when it is compiled, from the same seed."""
    results = []
    for mode in WAYS:
        torch.manual_seed(7)
        with torch.tiny.compile_mode(mode):
            results.append([t.cpu() for t in program()])
    return zip(*results, strict=True)


DRAWS = {
    "rand": lambda: torch.rand(7, 11, device="tiny"),
    "rand float64": lambda: torch.rand(300, device="tiny", dtype=torch.float64),
    "rand float16": lambda: torch.rand(300, device="tiny", dtype=torch.float16),
    "rand bfloat16": lambda: torch.rand(300, device="tiny", dtype=torch.bfloat16),
    "randn": lambda: torch.randn(1000, device="tiny"),
    "randn float64": lambda: torch.randn(1000, device="tiny", dtype=torch.float64),
    "randn_like of a view": lambda: torch.randn_like(torch.zeros(6, 5, device="tiny").t()),
    "uniform_ of a view": lambda: torch.zeros(6, 8, device="tiny")[:, 1::2].uniform_(-2, 3),
    "normal_": lambda: torch.zeros(500, device="tiny").normal_(2, 3),
    "normal of tensors": lambda: torch.normal(torch.arange(9.0, device="tiny"), torch.arange(1.0, 10.0, device="tiny")),
    "log_normal_": lambda: torch.zeros(50, device="tiny").log_normal_(0.5, 0.25),
    "exponential_": lambda: torch.zeros(500, device="tiny").exponential_(2.5),
    "geometric_": lambda: torch.zeros(500, device="tiny").geometric_(0.3),
    "cauchy_": lambda: torch.zeros(50, device="tiny").cauchy_(1, 2),
    "bernoulli of a number": lambda: torch.zeros(500, device="tiny").bernoulli_(0.3),
    "bernoulli of a tensor": lambda: torch.bernoulli(torch.linspace(0, 1, 500, device="tiny")),
    "randint": lambda: torch.randint(-5, 17, (500,), device="tiny"),
    "randint of many": lambda: torch.randint(0, 2**40, (500,), device="tiny"),
    "random_": lambda: torch.zeros(500, device="tiny", dtype=torch.int64).random_(),
    "random_ of bytes": lambda: torch.zeros(500, device="tiny", dtype=torch.uint8).random_(),
    "random_ of floats": lambda: torch.zeros(500, device="tiny").random_(3, 90),
    "randperm": lambda: torch.randperm(100, device="tiny"),
    "randperm of many": lambda: torch.randperm(5000, device="tiny"),
    "multinomial": lambda: torch.multinomial(torch.arange(1.0, 40.0, device="tiny"), 30),
    "multinomial with replacement": lambda: torch.multinomial(torch.arange(1.0, 40.0, device="tiny"), 30, True),
    "multinomial of rows": lambda: torch.multinomial(torch.arange(1.0, 41.0, device="tiny").view(4, 10), 1),
    "dropout": lambda: nn.functional.dropout(torch.ones(40, 30, device="tiny"), 0.3),
    "rrelu": lambda: nn.functional.rrelu(torch.linspace(-3, 3, 400, device="tiny"), training=True),
    "out=": lambda: torch.rand(5, 4, out=torch.empty(5, 4, device="tiny")),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_do_not_depend_on_the_way(name):
    for direct, compiled in both_ways(lambda: [DRAWS[name](), DRAWS[name]()]):
        if direct.is_floating_point():
            torch.testing.assert_close(
                direct, compiled, rtol=2e-6 if direct.dtype != torch.float64 else 1e-12, atol=2e-6
            )
        else:
            assert torch.equal(direct, compiled)


def test_the_stream_goes_on_where_the_other_way_left_it():
    def drawn(modes):
        torch.manual_seed(3)
        for mode in modes:
            with torch.tiny.compile_mode(mode):
                yield torch.randint(0, 1000, (50,), device="tiny").cpu()

    for a, b in zip(
        *(list(drawn(m)) for m in (["never", "always", "never"], ["always", "never", "always"])), strict=True
    ):
        assert torch.equal(a, b)


def train(device, steps=3):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 49, 10)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        x = torch.linspace(-1, 1, 4 * 3 * 16 * 16).view(4, 3, 16, 16).to(device) * (step + 1)
        loss = nn.functional.cross_entropy(model(x), torch.arange(4).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in (*model.parameters(), *model.buffers())]


def test_training_directly_is_training_on_the_cpu():
    with torch.tiny.compile_mode("never"):
        torch.tiny.reset_stats()
        losses, state = train("tiny")
        assert torch.tiny.stats()["direct"] > 0 and torch.tiny.stats()["compiles"] == 0
    expected_losses, expected = train("cpu")
    torch.testing.assert_close(losses, expected_losses, rtol=1e-5, atol=1e-6)
    for a, b in zip(state, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_layers_directly_and_their_gradients(cell, bidirectional):
    def run(device):
        torch.manual_seed(1)
        layer = cell(5, 6, num_layers=2, bidirectional=bidirectional).to(device)
        x = torch.linspace(-1, 1, 7 * 3 * 5).view(7, 3, 5).to(device).requires_grad_()
        output, _ = layer(x)
        output.square().sum().backward()
        return [output.detach().cpu(), x.grad.cpu(), *(p.grad.cpu() for p in layer.parameters())]

    with torch.tiny.compile_mode("never"):
        got = run("tiny")
    for a, b in zip(got, run("cpu"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("forward,backward", [("never", "always"), ("always", "never")])
@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_a_gradient_may_run_the_other_way_than_its_forward_pass(cell, forward, backward):
    def run(device, *modes):
        torch.manual_seed(1)
        layer = cell(5, 6).to(device)
        x = torch.linspace(-1, 1, 3 * 3 * 5).view(3, 3, 5).to(device)
        with torch.tiny.compile_mode(modes[0]):
            loss = layer(x)[0].square().sum()
            loss.item()
        with torch.tiny.compile_mode(modes[1]):
            loss.backward()
            return [p.grad.cpu() for p in layer.parameters()]

    for a, b in zip(run("tiny", forward, backward), run("cpu", "auto", "auto"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_numbers_keep_the_types_they_were_given_with(way):
    def program(device):
        half = torch.ones(3, dtype=torch.float16, device=device)
        number = torch.tensor(3, device=device)
        yield half + torch.tensor(2.5, dtype=torch.float64)
        yield number + torch.tensor(2.5, dtype=torch.float64)
        yield number * 2.5
        yield torch.tensor([True, False], device=device) * True
        yield torch.tensor([1, 2], device=device) + 1j
        yield torch.tensor([1, 2], device=device) + torch.tensor(2j)
        yield torch.where(number > 2, torch.tensor(1.0, dtype=torch.float64), half)
        yield torch.full((2,), 7, device=device)
        yield torch.full((2,), True, device=device)

    both(program)


def test_a_factory_keeps_the_default_dtype_it_was_recorded_with():
    with torch.tiny.compile_mode("never"):
        x = torch.ones(3, device="tiny")
        y = torch.linspace(0, 1, 5, device="tiny")
        torch.set_default_dtype(torch.float64)
        try:
            assert x.cpu().dtype == y.cpu().dtype == torch.float32
            assert x.cpu().tolist() == [1, 1, 1]
        finally:
            torch.set_default_dtype(torch.float32)


def test_temporaries_are_freed_at_their_last_use_and_dead_nodes_do_not_run():
    size = 1 << 20
    with torch.tiny.compile_mode("never"):
        x = torch.ones(size, device="tiny")
        x.sum().item()
        torch.tiny.reset_peak_memory_stats()
        before = torch.tiny.memory_allocated()
        y = x
        for _ in range(20):
            y = y * 1.5
            (y + 1).exp()  # nobody reads it
        total = y.sum().item()
        assert torch.tiny.max_memory_allocated() - before <= 3 * 4 * size
        assert total > 0


def test_modes_of_the_user_do_not_reach_into_a_flush():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen += 1
            return function(*args, **(kwargs or {}))

    with torch.tiny.compile_mode("never"), torch.autocast("cpu", dtype=torch.bfloat16):
        a = torch.rand(8, 8, device="tiny")
        product = a @ a
        with Count() as mode:
            values = product.cpu()
        assert mode.seen == 1
        assert values.dtype == torch.float32
        torch.testing.assert_close(values, a.cpu().float().mm(a.cpu()).float(), rtol=2e-2, atol=2e-2)


class TestCompileMode:
    def test_as_a_function_a_context_manager_and_a_decorator(self):
        def now():
            return torch.tiny.COMPILE_MODES[torch.tiny._C.compile_mode()]

        before = now()
        with torch.tiny.compile_mode("never"):
            assert now() == "never"
            with torch.tiny.compile_mode("always"):
                assert now() == "always"
            assert now() == "never"
        assert now() == before

        @torch.tiny.compile_mode("never")
        def inside():
            return now()

        assert now() == before and inside() == "never" and now() == before
        torch.tiny.compile_mode("always")
        assert now() == "always"
        torch.tiny.compile_mode(before)

    def test_refuses_other_words(self):
        with pytest.raises(ValueError, match="auto, always, never, mixed"):
            torch.tiny.compile_mode("sometimes")

    def test_deterministic_algorithms_never_mix_the_ways(self):
        torch.use_deterministic_algorithms(True)
        try:
            with torch.tiny.compile_mode("auto"):
                torch.tiny.reset_stats()
                for _ in range(3):
                    (torch.ones(5, device="tiny") * 2).sum().item()
                one_way = 3 if is_host() else 0  # on a device that ATen has no kernels for, the one that uses it
                assert (torch.tiny.stats()["flushes"], torch.tiny.stats()["direct"]) == (3, one_way)
        finally:
            torch.use_deterministic_algorithms(False)
