"""When a trace is compiled: not when new, behind when it comes again, at once where a loop of writes is one kernel."""

import pytest
import torch

from tests.differential import DEVICE
from tests.errors.test_errors import run


@pytest.fixture(autouse=True)
def auto():
    with torch.tiny.compile_mode("auto"):
        torch.tiny.reset_stats()
        yield


def counts(*names):
    stats = torch.tiny.stats()
    return tuple(stats[name] for name in names)


def test_a_trace_is_compiled_behind_when_it_comes_again():
    def step(x):
        return (x * 2 + 1).exp().sum().item()

    x = torch.linspace(0, 1, 53, device=DEVICE)
    want = (torch.linspace(0, 1, 53) * 2 + 1).exp().sum().item()
    x.sum().item()
    torch.tiny.reset_stats()
    assert step(x) == pytest.approx(want)
    assert counts("direct", "compiles", "compiling") == (1, 0, 0)
    assert step(x) == pytest.approx(want)
    assert counts("direct", "compiles") == (2, 0)
    assert torch.tiny.wait_for_compiles(60)
    assert step(x) == pytest.approx(want)
    assert counts("direct", "compiles", "replays", "kernels") == (2, 1, 0, 1)
    assert step(x) == pytest.approx(want)
    assert counts("direct", "compiles", "replays", "kernels") == (2, 1, 1, 2)


def test_shapes_that_never_come_again_are_never_compiled():
    for size in range(60, 90):
        assert torch.ones(size, device=DEVICE).mul(2).sum().item() == 2 * size
    torch.tiny.wait_for_compiles(60)
    assert counts("direct", "compiles", "compiling") == (30, 0, 0)


def test_numbers_that_differ_before_it_is_compiled_are_inputs_of_the_first_program():
    x = torch.ones(71, device=DEVICE)
    x.sum().item()
    torch.tiny.reset_stats()
    for number in (2.5, 3.5):
        assert (x * number).sum().item() == 71 * number
    torch.tiny.wait_for_compiles(60)
    for number in (4.5, 5.5, 6.5):
        assert (x * number).sum().item() == 71 * number
    assert counts("direct", "compiles", "replays") == (2, 1, 2)


@pytest.mark.parametrize("count", [100, 10_000])
def test_a_loop_of_writes_is_one_kernel_at_its_first_run(count):
    a = torch.zeros(count, device=DEVICE)
    a.sum().item()
    torch.tiny.reset_stats()
    for i in range(count):
        a[i] = i
    assert a.tolist() == list(map(float, range(count)))
    assert counts("flushes", "compiles", "direct", "kernels") == (1, 1, 0, 1)


def test_random_steps_replay_one_program():
    torch.manual_seed(0)
    drawn = []
    for i in range(6):
        drawn.append(torch.rand(37, device=DEVICE).mul(2).cpu())
        if i == 1:
            torch.tiny.wait_for_compiles(60)
    assert counts("direct", "compiles", "replays") == (2, 1, 3)
    torch.manual_seed(0)
    with torch.tiny.compile_mode("never"):
        for want in drawn:
            torch.testing.assert_close(torch.rand(37, device=DEVICE).mul(2).cpu(), want, rtol=1e-6, atol=1e-6)


PROGRAM = """
import torch
x = torch.linspace(0, 1, 64, device="tiny")
for i in range(6):
    y = x
    for step in range(40):  # each of another kind, so that none is compiled for others
        y = torch.sort(y.sin() + y.roll(step))[0].cumsum(0)
    value = y.sum().item()
    torch.tiny.wait_for_compiles(100)
stats = torch.tiny.stats()
print(stats["direct"], stats["compiles"], stats["replays"], stats["not_compiled"])
"""


def test_a_compile_beyond_its_bounds_is_a_matter_of_speed_alone():
    done = run(PROGRAM, TORCH_TINY_COMPILE="auto", TORCH_TINY_COMPILE_SECONDS="1")
    assert done.returncode == 0, done.stderr
    direct, compiles, replays, reasons = done.stdout.split(maxsplit=3)
    assert (direct, compiles, replays) == ("6", "0", "0"), done.stdout
    assert "TORCH_TINY_COMPILE_SECONDS" in reasons


def test_what_is_known_of_counters_is_not_waited_for():
    """As how much of a cache is in use, which generation asks after each token."""
    used, pending = torch.tensor(0).to(DEVICE), torch.ones(4, device=DEVICE) * 2
    torch.tiny.reset_stats()
    pending = pending + 1
    used += 5
    assert used.item() == 5 and used > 4 and used >= 5 and not used < 5 and not used > 5 and used <= 5
    assert counts("flushes") == (0,)
    tokens, pad = torch.tensor([[3, 5], [9, 4]]).to(DEVICE), torch.tensor(0).to(DEVICE)
    assert not torch.isin(tokens, pad).any() and not (tokens[:, -1] == pad).sum() > 0 and (tokens != 0).all()
    assert (torch.ones_like(tokens) == 1).all() and not torch.logical_not(tokens).any() and not (tokens < 0).any()
    assert counts("flushes") == (0,)
    assert torch.isin(tokens, torch.tensor(9).to(DEVICE)).any() and (tokens == 5).any() and not (tokens == 5).all()
    # Numbers that have to be converted first, and values of which one alone is known.
    small = torch.zeros(2, dtype=torch.uint8)
    for compared in (lambda x: x > -1, lambda x: x < 256, lambda x: x <= 0.5, lambda x: x >= True, lambda x: x != 256):
        assert compared(small.to(DEVICE)).any().item() == compared(small).any().item()
    used = torch.zeros(3, dtype=torch.long, device=DEVICE)
    used[1] = 7
    assert (used[0].item(), used[1].item(), (used > 0).tolist()) == (0, 7, [False, True, False])
    assert pending.tolist() == [3.0] * 4


def test_an_optimizer_step_runs_what_is_pending_where_its_parameters_are():
    here, elsewhere = (torch.ones(5, device=device, requires_grad=True) for device in (DEVICE, "cpu"))
    groups = [{"params": [elsewhere]}, {"params": (elsewhere.clone().detach(),)}]
    for parameters, flushes in ((groups, 0), ([*groups, {"params": [here]}], 1)):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        here.grad = torch.ones(5, device=DEVICE)
        torch.tiny.synchronize()
        torch.tiny.reset_stats()
        pending = here.detach() * 2
        optimizer.step()
        assert counts("flushes") == (flushes,)
        del pending
