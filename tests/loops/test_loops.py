"""Loops whose steps need each other's results: what a few steps take to compile serves any number of them, and every
value is the CPU's."""

from __future__ import annotations

import pytest
import torch

import torch_tinygrad
from tests.differential import COMPILES, DEVICE, ON_TINY, Cost, both, flush
from tests.errors.test_faults import Interrupt

pytestmark = pytest.mark.skipif(not ON_TINY, reason="counts programs of the device")
compiles = pytest.mark.skipif(not COMPILES, reason="counts programs")


def drawn(*size, device, seed=0):
    return torch.rand(size, generator=torch.Generator().manual_seed(seed)).to(device)


def heat(device, n, size=16):
    u = drawn(size, size, device=device)
    for _ in range(n):
        u[1:-1, 1:-1] += 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    return u


def life(device, n, size=16):
    cells = drawn(size, size, device=device) < 0.4
    for _ in range(n):
        around = sum(cells.roll((r, s), (0, 1)).int() for r in (-1, 0, 1) for s in (-1, 0, 1) if r or s)
        cells = (around == 3) | (cells & (around == 2))
    return cells


def wave_of_three_levels(device, n):
    before, now = drawn(64, device=device), drawn(64, device=device)
    for _ in range(n):
        before, now = now, 1.9 * now - 0.95 * before + 0.01 * (now.roll(1) + now.roll(-1))
    return before, now


def two_buffers_in_turn(device, n):
    a, b = drawn(64, device=device), drawn(64, device=device)
    view = a[1:-1]
    for _ in range(n):
        b[1:-1] = (a[2:] + a[:-2]) * 0.5
        a, b = b, a
    return a, b, view


def gray_scott(device, n, size=16):
    u, v = drawn(size, size, device=device), drawn(size, size, device=device, seed=1) * 0.3
    for _ in range(n):
        around = [w.roll(1, 0) + w.roll(-1, 0) + w.roll(1, 1) + w.roll(-1, 1) - 4 * w for w in (u, v)]
        reaction = u * v * v
        u += 0.16 * around[0] - reaction + 0.04 * (1 - u)
        v += 0.08 * around[1] + reaction - 0.1 * v
    return u, v


def lms(device, n):
    signal, wanted = drawn(1008, device=device), drawn(1008, device=device, seed=1)
    taps, errors = torch.zeros(8, device=device), torch.zeros(1000, device=device)
    for i in range(n):
        x = signal[i : i + 8]
        error = wanted[i] - taps @ x
        taps += 0.05 * error * x
        errors[i] = error
    return taps, errors


def power_iteration(device, n):
    m, x = drawn(12, 12, device=device), drawn(12, device=device, seed=1)
    for _ in range(n):
        x = m @ x
        x = x / x.norm()
    return x


def runge_kutta(device, n):
    m, x = drawn(6, 6, device=device) - 0.5, drawn(6, device=device, seed=1)
    for _ in range(n):
        k1 = m @ x
        k2 = m @ (x + 0.05 * k1)
        k3 = m @ (x + 0.05 * k2)
        x = (x + 0.01 * (k1 + 2 * k2 + 2 * k3 + m @ (x + 0.1 * k3))) * 0.99
    return x


def kalman(device, n):
    a, q = torch.eye(3).to(device) * 0.98, torch.eye(3).to(device) * 0.01
    h, seen = drawn(1, 3, device=device), drawn(1000, 1, device=device, seed=1)
    x, p = torch.zeros(3, 1, device=device), torch.eye(3).to(device)
    for i in range(n):
        x, p = a @ x, a @ p @ a.t() + q
        s = h @ p @ h.t() + 0.1
        gain = p @ h.t() / s
        x = x + gain * (seen[i] - h @ x)
        p = p - gain @ h @ p
    return x, p


def kalman_of_its_length(device, n):
    """Data as long as the loop: they are larger for more steps."""
    seen, path = drawn(n, 20, device=device), torch.empty(n, 20, device=device)
    move, state = torch.tensor([[1.0, 0.1], [0.0, 0.9]], device=device), torch.zeros(2, 20, device=device)
    for t in range(n):
        state = move @ state
        state = state + 0.2 * (seen[t] - state[0])
        path[t] = state[0]
    return state, path


def automaton(device, n):
    """Each row of a history from the one before it."""
    history = torch.empty(n + 1, 32, dtype=torch.bool, device=device)
    history[0] = drawn(32, device=device) > 0.5
    for t in range(n):
        row = history[t]
        history[t + 1] = row.roll(1) ^ (row | row.roll(-1))
    return history


def floyd_warshall(device, n):
    w = drawn(n, n, device=device) + 0.1
    for k in range(n):
        w = torch.minimum(w, w[:, k : k + 1] + w[k : k + 1])
    return w


def steps_of_training(device, n):
    x, y = drawn(16, 4, device=device), drawn(16, 1, device=device, seed=1)
    w = torch.zeros(4, 1, device=device, requires_grad=True)
    for _ in range(n):
        loss = ((x @ w - y) ** 2).mean()
        (gradient,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w -= 0.1 * gradient
    return w, loss


def history_kept(device, n):
    x, kept = drawn(32, device=device), []
    for i in range(n):
        x = (x + x.roll(1)) * 0.5 + i * 1e-3
        if i % 50 == 7:
            kept.append(x[4:])
    return x, kept


def trajectory(device, n):
    u, all_of_it = drawn(24, device=device), torch.zeros(1000, 24, device=device)
    for i in range(n):
        u[1:-1] += 0.2 * (u[2:] + u[:-2] - 2 * u[1:-1])
        all_of_it[i] = u
    return u, all_of_it


def chain(device, n):
    x = drawn(16, device=device)
    for _ in range(4 * n):
        x = x * 0.999 + 0.001
    return x


def updates(device, n):
    x = torch.zeros(8, device=device)
    for _ in range(4 * n):
        x += 1
    return x


def nested(device, n):
    u, total = drawn(32, device=device), torch.zeros((), device=device)
    for _ in range(8):
        for _ in range(n // 2):
            u[1:-1] = (u[2:] + u[:-2]) * 0.5
        total += u.sum()
        u[0] = total
    return u, total


LOOPS = [
    heat, life, wave_of_three_levels, two_buffers_in_turn, gray_scott, lms, power_iteration, runge_kutta, kalman,
    kalman_of_its_length, automaton,
    floyd_warshall, steps_of_training, history_kept, trajectory, chain, updates, nested,
]  # fmt: skip
# Another number of steps is another size in the first; when autograd's threads let go of a step's values is not fixed.
UNCOUNTED = (floyd_warshall, steps_of_training)
# Their data are as long as the loop, and a step's part of them moves: what is looked for depends on their size.
OF_THEIR_LENGTH = (kalman_of_its_length, automaton)


def compare(loop, n):
    both(lambda device: loop(device, n), schedules=("lazy",), rtol=1e-4, atol=1e-4)


@compiles
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_another_number_of_steps_compiles_nothing(loop):
    compare(loop, 150)
    if loop in UNCOUNTED:
        return
    with Cost() as cost:
        for n in (150, 333, 1000):
            compare(loop, n)
    cost.at_most(compiles=6 if loop in OF_THEIR_LENGTH else 0)


@pytest.mark.parametrize("mode", ["auto", "never", "mixed"])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_values_are_the_same_in_every_mode(loop, mode):
    with torch.tiny.compile_mode(mode):
        compare(loop, 150)


@compiles
def test_ten_thousand_steps_compile_as_little_as_ten():
    counted = {}
    for n in (10, 1000, 10_000):
        torch_tinygrad._C.clear_programs()
        with Cost() as cost:
            compare(heat, n)
        counted[n] = cost.spent["compiles"]
    assert counted[10] == counted[1000] == counted[10_000] <= 4


@compiles
@pytest.mark.parametrize("loop, most", [(heat, 2), (life, 2), (gray_scott, 2)])
def test_a_step_is_a_kernel_or_two(loop, most):
    with Cost() as cost:
        kept = loop(DEVICE, 200)
        flush()
    cost.at_most(kernels=200 * most)
    del kept


@compiles
def test_a_program_is_taken_up_in_the_middle_of_a_loop():
    torch_tinygrad._C.clear_programs()
    torch.tiny.reset_stats()
    try:
        torch_tinygrad._C.set_bounds(500, 1024, 2 << 30)
        with torch.tiny.compile_mode("auto"):
            x = torch.zeros(7, device=DEVICE)
            for step in range(900):
                x = x * 0.5 + 1
                if step == 450:
                    torch.tiny.wait_for_compiles(100)
            assert torch.equal(x.cpu(), torch.full((7,), 2.0))
    finally:
        torch_tinygrad._C.set_bounds(131072, 1024, 2 << 30)
    stats = torch.tiny.stats()
    assert stats["direct"] and stats["replays"] and stats["compiles"] <= 2


@compiles
@pytest.mark.parametrize("loop", [heat, life, lms, wave_of_three_levels], ids=lambda loop: loop.__name__)
def test_the_bound_on_pending_work_cuts_at_the_same_place_of_each_step(loop):
    """Wherever the bound falls, what has begun of a step waits for the rest of it."""
    compare(loop, 333)
    try:
        torch_tinygrad._C.set_bounds(1500, 1024, 2 << 30)
        compare(loop, 333)
        with Cost() as cost:
            compare(loop, 1000)
    finally:
        torch_tinygrad._C.set_bounds(131072, 1024, 2 << 30)
    cost.at_most(compiles=1)


def test_memory_is_that_of_a_step():
    """What no later step reads is not kept."""
    x = torch.zeros(1 << 18, device=DEVICE)
    flush()
    torch.tiny.reset_peak_memory_stats()
    before = torch.tiny.memory_allocated()
    for _ in range(200):
        x = x.roll(1) * 0.5 + x
    flush()
    assert torch.tiny.max_memory_allocated() - before <= 64 << 20  # all steps' results are 200 MiB


def test_random_numbers_do_not_depend_on_cutting():
    def walk(read):
        torch.manual_seed(3)
        x = torch.zeros(8, device=DEVICE)
        for _ in range(100):
            x = (x + torch.randn(8, device=DEVICE)) * 0.9
            if read:
                x.cpu()
        return x.cpu()

    torch.testing.assert_close(walk(read=False), walk(read=True))


def test_views_of_what_a_loop_writes_see_every_step():
    def program(device):
        u = drawn(40, device=device)
        even, back, bits = u[::2], u.flip(0), u.view(torch.int32)
        for i in range(100):
            even[1:] += 0.1 * u[:-2:2]
            u[3:9] = u[4:10] * 0.5 + i
        yield even, back, bits
        u[0] = 7
        yield even, back, bits

    both(program, rtol=1e-4, atol=1e-4)


def test_what_fails_between_two_loops_costs_what_depends_on_it():
    torch_tinygrad._C.set_bounds(131072, 1024, 1 << 60)
    try:
        x = torch.ones(4, device=DEVICE)
        for _ in range(100):
            x = x * 0.5 + 1
        huge = torch.ones(1 << 42, device=DEVICE)
        lost = x + huge.sum()
        for _ in range(100):
            x, lost = x * 0.5 + 1, lost * 0.5 + 1
        with pytest.raises(torch.OutOfMemoryError):
            flush()
        torch.testing.assert_close(x.cpu(), torch.full((4,), 2.0))
        with pytest.raises(RuntimeError, match="computing it failed earlier: aten::.*memory"):
            lost.cpu()
    finally:
        torch_tinygrad._C.set_bounds(131072, 1024, 2 << 30)


@compiles
def test_an_interrupt_between_pieces_loses_no_step_and_repeats_none():
    raised = 0
    for at in (1, 200, 3000, 20_000, 60_000):
        torch_tinygrad._C.clear_programs()
        x, view = torch.zeros(8, device=DEVICE), None
        flush()
        view = x[2:]
        for _ in range(150):
            x += 1
            view += 1
        try:
            with Interrupt(at) as interrupt:
                flush()
        except KeyboardInterrupt:
            raised += 1
        x += 1  # recorded behind what is pending still
        assert x.tolist() == [151, 151] + [301] * 6, (at, interrupt.raised)
    assert raised >= 2
