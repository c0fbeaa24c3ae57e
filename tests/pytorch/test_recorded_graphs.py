"""Graphs of torch.compile's that are appended to the trace as a whole, and those that must not be."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.differential import DEVICE, ON_TINY, Cost, data, flush, normal

pytestmark = pytest.mark.skipif(not ON_TINY, reason="about the device alone")
CALLS = 6


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function):
    return torch.compile(function, backend="tiny", fullgraph=True)


def appended(function, calls=CALLS) -> int:
    """How many of the calls were appended; each gets the number of the call."""
    before = torch.tiny.stats()["graphs"]
    for i in range(calls):
        function(i)
    return torch.tiny.stats()["graphs"] - before


class Steps:
    """Training steps of a small network: forward and backward pass and SGD in one function."""

    def __init__(self, device: str, wrap):
        self.weights = [normal(8, 16, device=device), normal(16, 4, seed=1, device=device)]
        for weight in self.weights:
            weight.requires_grad_()
        self.device, self.step = device, wrap(self._step)

    def _step(self, x, y):
        loss = F.cross_entropy(torch.relu(x @ self.weights[0]) @ self.weights[1], y)
        gradients = torch.autograd.grad(loss, self.weights)
        with torch.no_grad():
            for weight, gradient in zip(self.weights, gradients, strict=True):
                weight.sub_(gradient, alpha=0.1)
        return loss.detach()

    def __call__(self, i: int) -> torch.Tensor:
        y = (torch.arange(16) * (i + 1)) % 4
        return self.step(normal(16, 8, seed=i, device=self.device), y.to(self.device))


@pytest.fixture
def gradients_inside():
    """Without this dynamo leaves `torch.autograd.grad` out of its graphs."""
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        yield


def test_a_whole_training_step_is_appended(gradients_inside):
    on_cpu, eager, step = Steps("cpu", lambda f: f), Steps(DEVICE, lambda f: f), Steps(DEVICE, compiled)
    expected = [on_cpu(i).item() for i in range(CALLS)]
    assert appended(eager) == 0
    got = []
    # Two calls at least are recorded; one during which anything else happened on the device does not count.
    assert CALLS - 3 <= appended(lambda i: got.append(step(i).item())) <= CALLS - 2
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(step.weights, on_cpu.weights, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)
        assert one._version == other._version  # autograd knows that they were written


def test_it_runs_the_program_that_recording_leads_to(gradients_inside):
    step = Steps(DEVICE, compiled)
    for i in range(3):
        step(i)
        flush()
    with Cost() as cost:
        assert appended(lambda i: (step(i), flush()), 3) == 3
    cost.expect(compiles=0)
    with Cost() as recorded:
        eager = Steps(DEVICE, lambda f: f)
        eager(0), flush()
    recorded.expect(compiles=0)


def test_several_calls_are_one_trace():
    @compiled
    def f(x, y):
        return torch.tanh(x) @ y, x.sum()

    x, y = normal(4, 4, device=DEVICE), normal(4, 4, seed=1, device=DEVICE)
    for _ in range(2):
        f(x, y)
    flush()
    expected = x.cpu()
    got = x
    with Cost() as cost:
        for _ in range(4):
            got, total = f(got, y)
            expected, expected_total = torch.tanh(expected) @ y.cpu(), expected.sum()
        flush()
    cost.expect(flushes=1)
    torch.testing.assert_close([got.cpu(), total.cpu()], [expected, expected_total], rtol=1e-4, atol=1e-5)


def test_results_and_arguments_keep_their_layout_and_identity():
    @compiled
    def f(x):
        x.add_(1)
        return x, x.new_zeros(3, 2).t().contiguous().t() + 1, None, 3

    for i in range(4):
        x = normal(5, device=DEVICE)
        before = x._version
        same, made, nothing, number = f(x)
        assert same is x and x._version > before and nothing is None and number == 3
        assert made.stride() == (1, 3) and not made.requires_grad
        torch.testing.assert_close(x.cpu(), normal(5) + 1)
        assert torch.equal(made.cpu(), torch.ones(3, 2)), i


def test_an_index_out_of_range_is_still_refused():
    @compiled
    def f(table, index):
        return table[index] * 2

    table = normal(6, 3, device=DEVICE)
    for i in range(4):
        f(table, torch.tensor([0, i, 5], device=DEVICE))
    with pytest.raises(IndexError, match="out of"):
        f(table, torch.tensor([0, 6, 5], device=DEVICE))
    torch.testing.assert_close(f(table, torch.tensor([1, 2], device=DEVICE)).cpu(), table.cpu()[1:3] * 2)


REFUSED = {
    "a view of an argument": lambda x: x[1:],
    "two results on one memory": lambda x: (lambda y: (y[:2], y[2:]))(x * 2),
    "a result that needs a gradient": lambda x: x.detach().requires_grad_() * 2,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_more_than_its_nodes_is_recorded(name):
    function = torch.compile(REFUSED[name], backend="tiny")
    assert appended(lambda i: function(normal(4, seed=i, device=DEVICE))) == 0


def test_random_numbers_are_those_of_recording():
    function = compiled(lambda x: x + torch.rand(4, device=x.device))
    torch.tiny.manual_seed(5)
    expected = [(normal(4, seed=i, device=DEVICE) + torch.rand(4, device=DEVICE)).tolist() for i in range(CALLS)]
    torch.tiny.manual_seed(5)
    got = []
    assert appended(lambda i: got.append(function(normal(4, seed=i, device=DEVICE)).tolist())) == CALLS - 2
    assert got == expected


def test_random_numbers_of_another_generator():
    values = []
    for wrap in (lambda f: f, torch.compile(backend="tiny")):
        generator = torch.Generator(DEVICE).manual_seed(9)
        torch.tiny.manual_seed(9)
        function = wrap(lambda x, generator=generator: x + torch.rand(4, device=x.device, generator=generator) * 2)
        values.append([function(normal(4, seed=i, device=DEVICE)).tolist() for i in range(CALLS)])
        values[-1] += [torch.rand(3, device=DEVICE).tolist(), generator.get_state().tolist()]
    assert values[0] == values[1]


def test_tangents_are_followed():
    from torch.autograd import forward_ad

    function = compiled(lambda x: torch.sin(x) * 2)
    for i in range(4):
        function(normal(4, seed=i, device=DEVICE))
    with forward_ad.dual_level():
        x = normal(4, device=DEVICE)
        result = function(forward_ad.make_dual(x, torch.ones_like(x)))
        torch.testing.assert_close(forward_ad.unpack_dual(result).tangent.cpu(), normal(4).cos() * 2)


def test_arguments_on_one_memory_are_recorded():
    @compiled
    def f(x, y):
        x.add_(1)
        return x * y

    base = data(8).to(DEVICE)
    assert appended(lambda i: f(base[:4], base[4:])) == 0

    def apart_then_overlapping(i):
        x = data(8).to(DEVICE)
        y = x[2:6] if i == CALLS - 1 else data(4).to(DEVICE)
        got = f(x[:4], y)
        want = data(8)
        other = want[2:6] if i == CALLS - 1 else data(4)
        want[:4].add_(1)
        torch.testing.assert_close(got.cpu(), want[:4] * other)

    apart_then_overlapping(0), apart_then_overlapping(CALLS - 1)


def test_operators_of_others_run_in_each_call():
    ran = []

    @torch.library.custom_op("tests_recorded::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        ran.append(x.shape)
        return x + 1

    noted.register_fake(lambda x: torch.empty_like(x))

    @compiled
    def f(x):
        return noted(x) * 2

    for _ in range(5):
        f(normal(3, device=DEVICE))
    assert len(ran) == 5


def test_values_that_others_write_in_between_are_read():
    @compiled
    def f(x, y):
        y.copy_(x * 2)

    x, y = data(4).to(DEVICE), torch.zeros(4, device=DEVICE)
    for i in range(5):
        x.fill_(i)
        f(x, y)
        assert y.tolist() == [2.0 * i] * 4


def test_steps_of_optimizers_are_appended():
    """Dynamo keeps parameters that optimizers write as the graph's own."""
    found = {}
    for device, wrap in (("cpu", lambda f: f), (DEVICE, torch.compile(backend="tiny"))):
        weights = [normal(4, 3, device=device).requires_grad_(), normal(5, seed=1, device=device).requires_grad_()]
        optimizer = torch.optim.SGD(weights, lr=0.1)
        step = wrap(optimizer.step)
        before = torch.tiny.stats()["graphs"]
        for i in range(CALLS):
            for weight in weights:
                weight.grad = normal(*weight.shape, seed=i, device=device)
            step()
        found[device] = [weight.detach().cpu() for weight in weights]
    torch.testing.assert_close(found[DEVICE], found["cpu"])
    assert torch.tiny.stats()["graphs"] - before == CALLS - 2


def test_a_graph_that_reads_a_value_is_not_appended_though_the_value_is_known():
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        f = compiled(lambda x, count: x * count.item() + 1)
        x, counts = torch.ones(3, device=DEVICE), (5, 5, 5, 5, 6, 7, 5)
        results = [f(x, torch.full((), count, device=DEVICE)).tolist() for count in counts]
    assert results == [[count + 1.0] * 3 for count in counts]
