"""Parts of PyTorch that ask a device for something of its own: torch.func, flex_attention, custom operators for the CPU
alone, flop counts, benchmarks, pinned batches, copies of modules in the middle of a graph."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import func, nn
from torch.autograd import forward_ad
from torch.utils import benchmark
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from tests.differential import DEVICE, ON_TINY

pytestmark = [
    pytest.mark.skipif(not ON_TINY, reason="about the device alone"),
    pytest.mark.filterwarnings("ignore"),
]

X = torch.linspace(-1.0, 1.0, 4)


@pytest.fixture(autouse=True)
def compiled():
    with torch.tiny.compile_mode("always"):
        yield


def test_tensors_that_are_zero_by_definition():
    """`torch._efficientzerotensor`, the tangents that torch.func makes: zeros like others here, and no fallback."""
    before, x = torch.tiny.stats()["fallbacks"], X.to(DEVICE)
    zero = torch._efficientzerotensor(4, device=DEVICE)
    assert zero.tolist() == [0.0] * 4
    assert torch.equal((x + zero).cpu(), X) and torch.equal((zero * x + x).cpu(), X)
    assert torch.tiny.stats()["fallbacks"] == before


def waves(v: torch.Tensor) -> torch.Tensor:
    return v.sin() * v.sum()


def pushed_forward(v: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(v, torch.ones_like(v))
        return forward_ad.unpack_dual((dual * 2 + 1).relu() @ torch.eye(4, device=v.device)).tangent


def ensemble(v: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    networks = [nn.Linear(4, 2).to(v.device) for _ in range(3)]
    parameters, buffers = func.stack_module_state(networks)
    skeleton = copy.deepcopy(networks[0]).to("meta")
    return func.vmap(lambda p, b: func.functional_call(skeleton, (p, b), (v,)))(parameters, buffers)


TRANSFORMS = {
    "grad": func.grad(lambda v: waves(v).sum()),
    "vmap": lambda v: func.vmap(lambda a: a * 2 + v.sum())(v),
    "vmap of grad": func.vmap(func.grad(lambda a: a**3)),
    "jacrev": func.jacrev(waves),
    "jacfwd": func.jacfwd(waves),
    "hessian": func.hessian(lambda v: waves(v).sum()),
    "vjp": lambda v: func.vjp(torch.exp, v)[1](v)[0],
    "jvp": lambda v: func.jvp(lambda a: F.linear(a.exp(), torch.ones(2, 4, device=v.device)), (v,), (v,))[1],
    "forward mode": pushed_forward,
    "ensemble": ensemble,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_functions(name):
    torch.tiny.reset_stats()
    got = TRANSFORMS[name](X.to(DEVICE))
    assert got.device.type == "tiny"
    torch.testing.assert_close(got.detach().cpu(), TRANSFORMS[name](X).detach(), rtol=1e-5, atol=1e-6)
    assert not torch.tiny.stats()["fallbacks"]


class TestFlexAttention:
    @staticmethod
    def attended(device: str, **options) -> torch.Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        torch.manual_seed(0)
        q = torch.randn(1, 2, 128, 16).to(device)
        return flex_attention(q, q, q, **options).cpu()

    def test_scores_are_changed(self):
        def nearer(score, batch, head, i, j):
            return score - (i - j).abs()

        got, want = self.attended(DEVICE, score_mod=nearer), self.attended("cpu", score_mod=nearer)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)

    def test_blocks_are_masked(self):
        from torch.nn.attention.flex_attention import create_block_mask

        def masked(device):
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device=device)
            return self.attended(device, block_mask=mask)

        torch.testing.assert_close(masked(DEVICE), masked("cpu"), rtol=1e-4, atol=1e-5)

    def test_gradient(self):
        from torch.nn.attention.flex_attention import flex_attention

        q = torch.randn(1, 2, 128, 16)
        ours, plain = q.to(DEVICE).requires_grad_(), q.clone().requires_grad_()
        flex_attention(ours, ours, ours).square().sum().backward()
        F.scaled_dot_product_attention(plain, plain, plain).square().sum().backward()
        torch.testing.assert_close(ours.grad.cpu(), plain.grad, rtol=1e-4, atol=1e-5)


@torch.library.custom_op("tests::twice", mutates_args=(), device_types="cpu")
def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2)


@torch.library.custom_op("tests::add_one_", mutates_args=("x",), device_types="cpu")
def add_one_(x: torch.Tensor) -> None:
    x.numpy()[...] += 1


@torch.library.custom_op("tests::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def test_custom_operators_with_a_kernel_for_the_cpu_run_there_and_are_counted():
    torch.tiny.reset_stats()
    got = twice(X.to(DEVICE) + 1)
    assert got.device.type == "tiny"
    torch.testing.assert_close(got.cpu(), (X + 1) * 2)
    y = X.to(DEVICE) * 2
    view = y[1:3]
    add_one_(view)
    torch.testing.assert_close(y.cpu(), X * 2 + torch.tensor([0.0, 1, 1, 0]))
    torch.testing.assert_close(thrice(X.to(DEVICE)).cpu(), X * 3)
    assert "tests::twice" in torch.tiny.stats()["fallbacks"] and "tests::thrice" not in torch.tiny.stats()["fallbacks"]


def test_flops_are_counted_as_on_the_cpu():
    def flops(device):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5)).to(device)
        with FlopCounterMode(display=False) as counter:
            network(torch.ones(2, 3, 8, 8, device=device)).sum().backward()
        return counter.get_total_flops()

    assert flops(DEVICE) == flops("cpu") > 0


def test_benchmark_times_what_it_runs():
    timer = benchmark.Timer("(x * 2).sum().item()", globals={"x": X.to(DEVICE)})
    assert timer.timeit(5).number_per_run == 5
    assert timer.blocked_autorange(min_run_time=0.02).median > 0


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_pinned(workers):
    data = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, pin_memory=True, num_workers=workers)
    batches = [batch for (batch,) in data]
    assert all(batch.is_pinned() for batch in batches)
    assert [batch.to(DEVICE, non_blocking=True).sum().item() for batch in batches] == [6.0, 22.0]


def test_a_module_is_copied_in_the_middle_of_a_graph():
    def program(device):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(device)
        x = torch.arange(12.0).reshape(3, 4).to(device)
        y = network(x)
        twin = copy.deepcopy(network)
        y.square().sum().backward()
        twin(x + 1).square().sum().backward()
        values = [t for n in (network, twin) for p in n.parameters() for t in (p.detach(), p.grad)]
        return [t.cpu() for t in (*values, *network.buffers(), *twin.buffers())]

    torch.testing.assert_close(program(DEVICE), program("cpu"), rtol=1e-4, atol=1e-5)
