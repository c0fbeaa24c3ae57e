"""Programs whose regions lie elsewhere at every flush: positions of a cache, slices of a data set. After the offsets
differed once they are inputs of the program, and nothing compiles again."""

import copy

import torch
from torch import nn

from tests.differential import Cost

STEPS = 8
DEVICES = ("cpu", "tiny")


def replays(step, warm_up: int = 3) -> None:
    """The step at positions 0, 1, ...: equal on both devices, and compiled only while it is new (the first position
    also makes the data, the second is the first like the rest, the third the first that differs from one before)."""
    expected = [step("cpu", i) for i in range(STEPS)]
    got = [step("tiny", i) for i in range(warm_up)]
    with Cost() as cost:
        got += [step("tiny", i) for i in range(warm_up, STEPS)]
    assert got == expected
    cost.expect(compiles=0)


def on_both(make) -> dict:
    return {device: make(device) for device in DEVICES}


def test_slices_of_a_data_set():
    data = on_both(lambda d: torch.arange(64.0, device=d).reshape(16, 4))
    replays(lambda d, i: (data[d][2 * i : 2 * i + 2] * 2 + data[d][i]).tolist())


def test_a_position_of_a_cache_is_written_and_all_of_it_read():
    caches = on_both(lambda d: torch.zeros(2, STEPS, 4, device=d))

    def step(d, i):
        caches[d][:, i] = torch.full((2, 4), i + 1.0, device=d)
        return (caches[d].sum(0) @ torch.ones(4, device=d)).tolist()

    replays(step)
    assert torch.equal(caches["tiny"].cpu(), caches["cpu"])


def test_writes_and_reads_that_keep_their_distance():
    rows = on_both(lambda d: torch.arange(60.0, device=d).reshape(20, 3))

    def step(d, i):
        a = rows[d]
        a[i + 1] = a[i] + a[i + 2]
        a[i + 2, 1] += 1
        return a.tolist()

    replays(step)


def test_regions_that_meet_at_some_positions_only():
    """What was apart when the program was compiled overlaps later."""
    flat = on_both(lambda d: torch.arange(40.0, device=d))

    def step(d, i):
        a = flat[d]
        early = a[20:24] * 1
        a[3 * i : 3 * i + 6] = -1.0 * i
        late = a[20:24] * 1
        a[10:12] = early[:2] + 100
        return [early.tolist(), late.tolist(), a.tolist()]

    replays(step)


def test_groups_that_move_apart_are_told_apart():
    flat = on_both(lambda d: torch.arange(64.0, device=d))
    offsets = [(0, 8), (1, 9), (2, 10), (3, 20), (4, 22), (5, 30), (9, 9), (12, 8)]

    def step(d, i):
        a, (p, q) = flat[d], offsets[i]
        a[p : p + 4] = a[q : q + 4] + 1
        return a.tolist()

    replays(step, warm_up=4)


def test_views_in_another_dtype_move_by_bytes():
    words = on_both(lambda d: torch.arange(32, dtype=torch.int32, device=d))

    def step(d, i):
        halves = words[d].view(torch.int16)
        halves[2 * i + 4 : 2 * i + 8] = i
        words[d][i + 8] += 1
        return words[d].tolist()

    replays(step)


def test_complex_regions_move():
    numbers = on_both(lambda d: torch.arange(24.0, device=d).view(12, 2).view(-1, 2).contiguous())

    def step(d, i):
        z = torch.view_as_complex(numbers[d])
        z[i] = z[i + 1] * 2j
        return torch.view_as_real(z).tolist()

    replays(step)


def test_as_strided_scatter_counts_from_the_start_of_the_storage():
    flat = on_both(lambda d: torch.arange(24.0, device=d))

    def step(d, i):
        part = flat[d][i : i + 6]
        return torch.as_strided_scatter(part, torch.full((2,), -1.0, device=d), (2,), (1,), 8).tolist()

    expected = [step("cpu", i) for i in range(3, STEPS)]
    assert [step("tiny", i) for i in range(3, STEPS)] == expected


def test_loops_of_writes_begin_elsewhere():
    flat = on_both(lambda d: torch.zeros(64, device=d))

    def step(d, i):
        for j in range(5):
            flat[d][3 * i + j] = j + i
        return flat[d].tolist()

    replays(step)


def test_training_on_slices_compiles_once():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    x, y = torch.randn(64, 6), torch.randn(64, 1)
    losses = {device: list(trained(copy.deepcopy(model).to(device), x.to(device), y.to(device))) for device in DEVICES}
    torch.testing.assert_close(losses["tiny"], losses["cpu"])


def trained(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(i: int) -> float:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[8 * i : 8 * i + 8]), y[8 * i : 8 * i + 8])
        loss.backward()
        optimizer.step()
        return loss.item()

    yield from map(step, range(4))
    with Cost() as cost:
        yield from map(step, range(4, 8))
    cost.expect(compiles=0)
