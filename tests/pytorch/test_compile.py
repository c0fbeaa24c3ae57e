"""torch.compile on the device, by the backend "tiny" and by the default one: values, gradients, shapes and breaks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.differential import DEVICE, ON_TINY, Cost, data, flush, normal

pytestmark = pytest.mark.skipif(not ON_TINY, reason="about the device alone")
BACKENDS = ["tiny", "inductor"]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def train(model, step, device: str) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = normal(16, 8, device=device), torch.arange(16, device=device) % 4
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(step(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_follows_the_cpu(backend):
    expected = train(model := network(), model, "cpu")
    model = network().to(DEVICE)
    got = train(model, torch.compile(model, backend=backend, fullgraph=True), DEVICE)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_the_default_backend_takes_modes_and_leaves_the_cpu_to_inductor():
    model = network().to(DEVICE).eval()
    compiled = torch.compile(model, mode="reduce-overhead")
    torch.testing.assert_close(compiled(normal(3, 8, device=DEVICE)), model(normal(3, 8, device=DEVICE)))
    assert "tiny" in torch._dynamo.list_backends()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_whole_step_in_one_function(backend):
    def program(device, wrap):
        weight = normal(8, 4, device=device).requires_grad_()

        @wrap
        def step(x):
            loss = (x @ weight).square().mean()
            (gradient,) = torch.autograd.grad(loss, weight)
            with torch.no_grad():
                weight.sub_(0.1 * gradient)
            return loss.detach()

        return [step(normal(16, 8, seed=i, device=device)).item() for i in range(4)], weight.detach().cpu()

    expected = program("cpu", lambda f: f)
    got = program(DEVICE, torch.compile(backend=backend))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_sizes_that_change_do_not_trace_again_and_again():
    counter = torch._dynamo.testing.CompileCounterWithBackend("tiny")

    @torch.compile(backend=counter)
    def f(x):
        return (x * 2).sum(0) + x.shape[0]

    for n in range(2, 9):
        torch.testing.assert_close(f(data(n, 3).to(DEVICE)).cpu(), (data(n, 3) * 2).sum(0) + n)
    assert counter.frame_count <= 2


def test_breaks_in_the_graph_keep_the_order():
    @torch.compile(backend="tiny")
    def f(x):
        y = x * 2
        if y.sum().item() > 0:
            y[0] = -1
        torch._dynamo.graph_break()
        return y + x

    torch._dynamo.utils.counters.clear()
    for seed in range(4):
        x = data(6, seed=seed)
        expected = x * 2
        if expected.sum() > 0:
            expected[0] = -1
        torch.testing.assert_close(f(x.to(DEVICE)).cpu(), expected + x)
    # What runs inside, the device's own compiler, is not traced.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 5


def test_views_writes_and_random_numbers():
    def f(x):
        x[1:3].add_(1)
        y = x.t()[0]
        y.mul_(2)
        return y, F.dropout(x, 0.5), torch.rand(3, device=x.device)

    results = []
    for function in (f, torch.compile(f, backend="tiny", fullgraph=True)):
        torch.manual_seed(5)
        x = data(4, 4).to(DEVICE)
        results.append([t.cpu() for t in (*function(x), x)])
    for eager, compiled in zip(*results, strict=True):
        assert torch.equal(eager, compiled)


def test_streams_and_events_inside():
    @torch.compile(backend="tiny")
    def f(x):
        side = torch.tiny.Stream()
        with torch.tiny.stream(side):
            y = x + 1
        torch.tiny.current_stream().wait_stream(side)
        return y * 2

    assert torch.equal(f(data(5).to(DEVICE)).cpu(), (data(5) + 1) * 2)


def test_a_second_call_compiles_nothing():
    model = network().to(DEVICE)
    compiled = torch.compile(model)
    x = normal(4, 8, device=DEVICE)
    for _ in range(2):
        compiled(x).sum().backward()
        flush()
    with Cost() as cost:
        compiled(x).sum().backward()
        flush()
    cost.expect(compiles=0)
    cost.no_fallbacks()


def test_aot_inductor_is_refused(tmp_path):
    """tiny: AOTInductor writes code for the devices it knows"""
    exported = torch.export.export(network().eval().to(DEVICE), (normal(4, 8, device=DEVICE),))
    with pytest.raises(NotImplementedError, match="tiny: AOTInductor writes code for the devices it knows"):
        torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "packed.pt2"))


def test_exported_programs_run():
    model = network().eval()
    exported = torch.export.export(model.to(DEVICE), (normal(4, 8, device=DEVICE),))
    x = normal(4, 8, seed=1)
    torch.testing.assert_close(exported.module()(x.to(DEVICE)).cpu(), model.cpu()(x), rtol=1e-4, atol=1e-5)
