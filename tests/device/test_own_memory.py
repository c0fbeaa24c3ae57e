"""Devices with memory of their own: moving to and from them, types, limits, the disk cache. Run on each device that a
machine has by `make test-devices`; here on the device that is chosen."""

from __future__ import annotations

import math
import os
from ast import literal_eval

import pytest
import torch

from tests.differential import DEVICE, both, flush, normal
from tests.models import LSTMClassifier, Transformer, images, mlp, next_tokens, sequences, tiny_cnn, vectors
from tests.processes import ROOT, run
from torch_tinygrad.choice import is_host
from torch_tinygrad.engine.devices import lacking
from torch_tinygrad.target import target

ENDS = [0, 1, -1, 3, -7, 2**31 - 1, 2**31, -(2**31) - 1, 2**32 + 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63) + 1]


def test_integers_of_64_bits_are_exact():
    pairs = [(a, b) for a in ENDS for b in ENDS if b]
    first, second = (torch.tensor(numbers) for numbers in zip(*pairs, strict=True))

    def program(device):
        a, b = first.to(device), second.to(device)
        arithmetic = a + b, a - b, a * b, a // b, a % b, torch.div(a, b, rounding_mode="trunc"), torch.fmod(a, b)
        return *arithmetic, a < b, a >> 5, a ^ b, a.sum(), a.sort().values, a.float(), (a % 1000).to(torch.int16)

    both(program, schedules=("lazy",), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16], ids=str)
def test_short_integers_wrap_before_they_are_used(dtype):
    ends = torch.iinfo(dtype)
    numbers = torch.linspace(ends.min, ends.max, 33).to(dtype)

    def program(device):
        a, b = numbers.to(device), numbers.flip(0).to(device)
        return (a + b).float(), (a * b) > 5, (a - b).long(), (~a).int(), (a * 3) // 7, (a.int() * 1000).to(dtype).int()

    both(program, schedules=("lazy",), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.bool], ids=str)
def test_short_integers_that_are_read_conditionally(dtype):
    numbers = torch.arange(27).sub(7).to(dtype)

    def program(device):
        a = numbers.to(device)
        b = a.clone()
        b[:2] = b[1:3].clone()
        parts = (a[3:9], a[1:2], a[11:])
        return a.roll(1), a.view(9, 3).roll(1, 0), a.view(9, 3).roll(2, 1), b, torch.cat(parts), a.flip(0).roll(5)

    both(program, schedules=("lazy",), rtol=0, atol=0)


def test_bits_of_halves_as_integers_have_a_sign():
    if torch.float16 in lacking():
        pytest.skip("the device lacks float16")
    numbers = torch.tensor([-1.0, 2.0, 0.5, -0.0, math.inf, -math.inf, 3.0, -1000.0], dtype=torch.float16)

    def program(device):
        x = numbers.to(device)
        computed = (x * 2).view(torch.int16)
        y = (x * 2).view(torch.int16)
        y[y > 4] = 1
        return (
            computed.int() >> 3,
            computed.float(),
            (x + x).view(torch.uint16).int(),
            y,
            (computed ^ -32768).view(x.dtype),
        )

    both(program, schedules=("lazy",), rtol=0, atol=0)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_gradients_of_few_rows_of_a_table_are_added_once(count):
    def program(device):
        table = torch.arange(50.0).view(10, 5).to(device).requires_grad_()
        index = torch.tensor([5, 5, 2, 9, 0, 5, 2][:count]).to(device)
        rows = torch.nn.functional.embedding(index, table)
        bag = torch.nn.functional.embedding_bag(index, table, index[:1] * 0, mode="sum")
        return torch.autograd.grad((rows * rows).sum() + bag.sum(), table)[0]

    both(program, schedules=("lazy",))


def test_conversions_of_large_floats_to_integers_are_exact():
    numbers = torch.tensor([1e10, -1e10, 3.7, -3.7, 2.0**40 + 2**20, -(2.0**62), 2.0**32, -(2.0**31) - 256])
    both(lambda device: (numbers.to(device).long(), (numbers.to(device).long() * 3).int()), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_remainders_of_floats_are_compiled(dtype):
    """The kernel had the name of a function of OpenCL's, and was not found; threads that a group has too many looped
    for ever. Without float64 large quotients had digits that they do not have."""
    numbers = torch.tensor([7.5, -7.5, 1e30, -0.3, 5e-300 if dtype == torch.float64 else 1e-38], dtype=dtype)
    torch.tiny.reset_stats()
    with torch.tiny.compile_mode("always"):
        both(lambda d: (numbers.to(d).fmod(0.7), numbers.to(d) % 0.7, numbers.to(d).fmod(-1e-3)), rtol=0, atol=0)
    assert not torch.tiny.stats()["not_compiled"]


def test_types_that_the_hardware_lacks_are_refused_where_a_tensor_is_made():
    for dtype in lacking():
        with pytest.raises(TypeError, match=torch.tiny.get_device_name()):
            torch.zeros(2, dtype=dtype, device=DEVICE)
        with pytest.raises(TypeError, match="support"):
            torch.zeros(2, device=DEVICE).to(dtype)
        with pytest.raises(TypeError, match="support"):
            torch.zeros(16, dtype=torch.uint8, device=DEVICE).view(dtype)
    if torch.float64 in lacking():
        name = torch.tiny.get_device_name()
        words = f"Cannot convert a {name} Tensor to float64 dtype as the {name} framework doesn't support float64"
        with pytest.raises(TypeError, match=words):
            torch.zeros(2, dtype=torch.float64).to(DEVICE)


def test_state_moves_between_devices(tmp_path):
    torch.manual_seed(0)
    model = mlp().to(DEVICE)
    torch.save(model.state_dict(), tmp_path / "state")
    other = mlp()
    other.load_state_dict(torch.load(tmp_path / "state", map_location="cpu"))
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours.cpu(), theirs)
    model.load_state_dict(mlp().state_dict())
    model.load_state_dict(torch.load(tmp_path / "state", map_location=DEVICE))
    x, _ = vectors(3)
    torch.testing.assert_close(model(x.to(DEVICE)).cpu(), other(x))


def test_state_saved_on_one_device_is_loaded_on_another(tmp_path):
    """Training goes on there with the optimizer's state and the same random numbers."""
    code = f"""
    import torch
    from pathlib import Path
    from tests.models import mlp, vectors
    torch.manual_seed(0)
    model, path = mlp().to("tiny"), Path({str(tmp_path / "state")!r})
    optimizer = torch.optim.Adam(model.parameters())
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.tiny.set_rng_state(state["random"])
    x, y = (t.to("tiny") for t in vectors(4))
    for step in range(2):
        noise = torch.randn(x.shape, device="tiny")
        torch.nn.functional.cross_entropy(model(x + noise), y).backward()
        optimizer.step()
    state = {{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.tiny.get_rng_state()}}
    torch.save(state, path)
    print([p.sum().item() for p in model.parameters()])
    """

    def trained(*devices):
        (tmp_path / "state").unlink(missing_ok=True)
        for device in devices:
            path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
            done = run(code, PYTHONPATH=path, TORCH_TINY_COMPILE="never", **device)  # compiling is not what it is about
            assert done.returncode == 0, done.stderr[-4000:]
        return literal_eval(done.stdout)

    there = {"DEV": "CPU", "TORCH_TINY_HOST": "0"}
    torch.testing.assert_close(trained({}, there), trained(there, {}), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "make, batch",
    [
        (tiny_cnn, lambda: images(4, 8)),
        (Transformer, lambda: next_tokens(2)),
        (LSTMClassifier, lambda: sequences(4, length=4)),
    ],
    ids=["cnn", "transformer", "lstm"],
)
def test_training_gives_the_weights_of_the_cpu(make, batch):
    def program(device):
        torch.manual_seed(0)
        model = make().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        inputs, classes = (t.to(device) for t in batch())
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), classes).backward()
            optimizer.step()
        return list(model.parameters())

    both(program, schedules=("lazy",), rtol=1e-4, atol=1e-5)


def test_sorting_and_scans_of_long_rows():
    def program(device):
        x = normal(3, 3000, device=device)
        values, places = x.sort(dim=1)
        return values, places, x.cumsum(1), x.cummax(1).values, x.topk(7).values, x.flatten().unique().shape[0]

    both(program, schedules=("lazy",), rtol=1e-4, atol=1e-4)


def test_programs_come_back_from_disk(tmp_path):
    code = """
    import torch
    x = torch.arange(12.0, device="tiny").reshape(3, 4)
    x[1] = 5
    print((x.cumsum(0) * 2 + x.sort().values).tolist())
    stats = torch.tiny.stats()
    print(stats["compiles"], stats["loads"])
    """
    settings = {"TORCH_TINY_CACHE": str(tmp_path), "TORCH_TINY_COMPILE": "always"}
    first, second = (run(code, **settings) for _ in range(2))
    (value, counts), (again, counts_again) = (done.stdout.splitlines() for done in (first, second))
    assert value == again and counts.split()[1] == "0" and counts_again.split()[0] == "0", (counts, counts_again)
    elsewhere = {"TORCH_TINY_HOST": "0" if is_host() else "1"}
    value, counts = run(code, DEV="CPU", TORCH_TINY_CACHE=str(tmp_path), **elsewhere).stdout.splitlines()
    assert value == again and counts.split()[1] == "0", counts  # those of another device are not taken


def test_an_upload_does_not_depend_on_its_source_afterwards():
    source = normal(1000)
    expected = source.clone()
    there = source.to(DEVICE)
    source.zero_()
    assert torch.equal(there.cpu(), expected)


def test_the_same_seed_gives_the_same_numbers_on_every_device():
    code = """
    import torch
    torch.manual_seed(5)
    draws = [torch.rand(5, device="tiny"), torch.randn(5, device="tiny"), torch.randint(0, 2**40, (5,), device="tiny")]
    print([number for draw in draws for number in draw.tolist()])
    """
    here, there = (run(code, **device).stdout for device in ({}, {"DEV": "CPU"}))
    torch.testing.assert_close(literal_eval(here), literal_eval(there), rtol=1e-6, atol=1e-6)


def test_more_operands_than_a_kernel_takes_are_added_up():
    both(lambda device: sum((normal(5, seed=i, device=device) for i in range(40)), torch.zeros(5, device=device)))


def test_a_buffer_larger_than_the_device_takes_is_refused():
    most = target().most_bytes
    if most >= 1 << 40:
        pytest.skip("the device names no such bound")
    with pytest.raises(torch.OutOfMemoryError, match=target().device):
        large = torch.empty(most + 4096, dtype=torch.uint8, device=DEVICE)
        large.fill_(1)
        flush()
