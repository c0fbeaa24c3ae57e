"""The surface of `torch.tiny`, and what surrounds computing: printing, copies, saving, loading, processes, threads."""
# ruff: noqa: F841 - the differential helper compares the local variables of a program

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.differential import DEVICE, Cost, both, data, flush, normal
from tests.processes import run

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)


def in_subprocess(code: str, **environment: str) -> str:
    """Runs code in a fresh interpreter and returns what it prints; its failure is the test's."""
    done = run(code, **environment)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout


# ----------------------------------------------------------------------------------------------------------- surface


LIKE = {
    **{f"{name}_like": getattr(torch, f"{name}_like") for name in ("empty", "zeros", "ones", "rand", "randn")},
    "full_like": lambda t, **options: torch.full_like(t, 3, **options),
    "randint_like": lambda t, **options: torch.randint_like(t, 3, **options),
    **{
        f"new_{name}": lambda t, name=name, **o: getattr(t, f"new_{name}")(2, **o)
        for name in ("empty", "zeros", "ones")
    },
    "new_full": lambda t, **options: t.new_full((2,), 3, **options),
    "new_tensor": lambda t, **options: t.new_tensor([1, 2], **options),
    "new_empty_strided": lambda t, **options: t.new_empty_strided((2,), (1,), **options),
}


@pytest.mark.parametrize("name", LIKE)
def test_what_is_made_like_a_tensor_lies_where_it_is_asked_for(name):
    """Filled ones were on the device whatever was asked for."""
    here, there = torch.zeros(2, 3, device=DEVICE), torch.zeros(2, 3)
    for device in ("cpu", "meta", DEVICE):
        for like in (here, there):
            made = LIKE[name](like, device=device, dtype=torch.float64)
            assert made.device.type == torch.device(device).type
            assert made.dtype is torch.float64
            if device != "meta" and "empty" not in name and "rand" not in name:
                assert torch.equal(made.cpu(), LIKE[name](there, dtype=torch.float64))
    assert LIKE[name](here).device.type == torch.device(DEVICE).type


def test_a_tensor_of_the_cpu_is_not_indexed_by_one_of_the_device():
    """As by no accelerator's: the result was on the device."""
    cpu, places = torch.arange(4.0), torch.tensor([0, 2], device=DEVICE)
    for action in (lambda: cpu[places], lambda: cpu.__setitem__(places, 1.0), lambda: cpu[places > 0]):
        with pytest.raises(RuntimeError, match=r"indices should be either on cpu or on the same device .*\(cpu\)"):
            action()
    assert cpu.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert cpu.to(DEVICE)[places.cpu()].tolist() == [0.0, 2.0]


def test_importing_torch_alone_makes_the_device():
    printed = in_subprocess("import torch; print(torch.ones(2, device='tiny').sum().item(), torch.tiny.is_available())")
    assert printed.split() == ["2.0", "True"]


def test_module_answers_what_other_devices_answer():
    assert torch.tiny.is_available() and torch.tiny.device_count() >= 1
    assert torch.tiny.current_device() == 0
    assert isinstance(torch.tiny.get_device_name(), str) and torch.tiny.get_device_name()
    torch.tiny.set_device(0)
    with torch.tiny.device(0):
        assert torch.empty(1, device="tiny").device == torch.device("tiny:0")
    torch.tiny.synchronize()
    torch.tiny.empty_cache()
    assert torch.device("tiny").type == "tiny" and torch.device("tiny:0").index == 0
    assert torch.accelerator.current_accelerator().type == "tiny"


def test_tensors_and_modules_have_the_methods_of_the_device():
    assert torch.ones(2).tiny().is_tiny and not torch.ones(2).is_tiny
    assert next(nn.Linear(2, 2).tiny().parameters()).device.type == "tiny"


def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(RuntimeError, match="tiny|device"):
        torch.empty(1, device=f"tiny:{torch.tiny.device_count()}")
    with pytest.raises(RuntimeError):
        torch.tiny.set_device(torch.tiny.device_count())


@torch.tiny.compile_mode("always")
def test_stats_count_and_reset():
    names = {"nodes", "flushes", "compiles", "replays", "kernels", "bytes_moved", "fallbacks"}
    x = torch.ones(37, device=DEVICE)
    with Cost() as cost:
        y = x * 3 + 1
        y.tolist()
    assert names <= set(torch.tiny.stats()) and isinstance(torch.tiny.stats()["fallbacks"], dict)
    assert cost.spent["nodes"] >= 2 and cost.spent["flushes"] >= 1 and cost.spent["kernels"] == 1
    assert cost.spent["compiles"] + cost.spent["replays"] == cost.spent["flushes"]
    assert 2 * 37 * 4 <= cost.spent["bytes_moved"] <= 4 * 37 * 4
    torch.tiny.reset_stats()
    assert all(not torch.tiny.stats()[name] for name in names)


@torch.tiny.compile_mode("always")
def test_the_same_work_a_second_time_replays():
    def work():
        x = torch.arange(11, device=DEVICE)
        return (x * x - 1).sum().item()

    work()
    with Cost() as cost:
        assert work() == sum(i * i - 1 for i in range(11))
    cost.expect(compiles=0)
    assert cost.spent["replays"] >= 1


def test_memory_statistics_follow_buffers():
    gc.collect()
    flush()
    before = torch.tiny.memory_allocated()
    x = torch.zeros(1 << 18, device=DEVICE) + 1
    flush()
    assert torch.tiny.memory_allocated() - before >= 1 << 20
    assert torch.tiny.max_memory_allocated() >= torch.tiny.memory_allocated()
    del x
    gc.collect()
    flush()
    assert torch.tiny.memory_allocated() - before < 1 << 20


def test_training_does_not_leak_buffers():
    network = nn.Linear(64, 64).to(DEVICE)
    sizes = []
    for _ in range(6):
        network(torch.ones(64, 64, device=DEVICE)).sum().backward()
        network.zero_grad()
        flush()
        gc.collect()
        sizes.append(torch.tiny.memory_allocated())
    assert sizes[-1] <= sizes[2]


# -------------------------------------------------------------------------------------------------------- generators


def test_manual_seed_makes_random_numbers_repeat():
    for seed in (torch.manual_seed, torch.tiny.manual_seed, torch.tiny.manual_seed_all):
        seed(5)
        first = torch.rand(8, device=DEVICE).tolist()
        second = torch.rand(8, device=DEVICE).tolist()
        seed(5)
        assert torch.rand(8, device=DEVICE).tolist() == first != second


def test_state_of_the_generator_can_be_kept_and_restored():
    torch.manual_seed(2)
    torch.rand(3, device=DEVICE)
    state = torch.tiny.get_rng_state()
    a = torch.randn(6, device=DEVICE).tolist()
    torch.tiny.set_rng_state(state)
    assert torch.randn(6, device=DEVICE).tolist() == a
    with torch.random.fork_rng(device_type="tiny"):
        torch.rand(3, device=DEVICE).tolist()
    torch.tiny.set_rng_state(state)
    assert torch.randn(6, device=DEVICE).tolist() == a


def test_generators_are_independent_of_each_other_and_of_the_default():
    g, h = torch.Generator(DEVICE).manual_seed(1), torch.Generator(DEVICE).manual_seed(1)
    assert g.device.type == "tiny" and g.initial_seed() == 1
    a = torch.rand(4, device=DEVICE, generator=g).tolist()
    torch.rand(4, device=DEVICE)
    assert torch.rand(4, device=DEVICE, generator=h).tolist() == a
    state = g.get_state()
    b = torch.rand(4, device=DEVICE, generator=g).tolist()
    assert g.set_state(state) is g and torch.rand(4, device=DEVICE, generator=g).tolist() == b != a


def test_random_numbers_are_right_in_distribution():
    torch.manual_seed(0)
    uniform, gauss = torch.rand(20000, device=DEVICE).cpu(), torch.randn(20000, device=DEVICE).cpu()
    assert 0 <= uniform.min() and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01 and abs(uniform.var() - 1 / 12) < 0.005
    assert abs(gauss.mean()) < 0.03 and abs(gauss.std() - 1) < 0.03
    assert abs((gauss.abs() < 1).float().mean() - 0.6827) < 0.015
    whole = torch.randint(-3, 4, (7000,), device=DEVICE).cpu()
    assert whole.unique().tolist() == list(range(-3, 4))
    assert sorted(torch.randperm(50, device=DEVICE).tolist()) == list(range(50))


# ------------------------------------------------------------------------------------------------- printing, reading


@pytest.mark.parametrize("dtype", DTYPES)
def test_printing_shows_the_values_and_the_device(dtype):
    on_cpu, on_device = data(2, 3, dtype=dtype), data(2, 3, dtype=dtype, device=DEVICE)
    suffix = "" if dtype in (torch.bool, torch.int64, torch.float32) else f", dtype={dtype}"
    plain = repr(on_cpu).removesuffix(f"{suffix})")
    assert repr(on_device).replace("\n      ", "") == f"{plain}, device='tiny:0'{suffix})".replace("\n      ", "")


def test_printing_of_gradients_empty_and_large_tensors():
    w = torch.ones(2, device=DEVICE, requires_grad=True)
    assert repr(w) == "tensor([1., 1.], device='tiny:0', requires_grad=True)"
    assert "grad_fn=<MulBackward0>" in repr(w * 2)
    assert repr(torch.empty(0, 3, device=DEVICE)) == "tensor([], device='tiny:0', size=(0, 3))"
    assert "..." in repr(torch.zeros(2000, device=DEVICE))
    assert f"{torch.tensor(2.5, device=DEVICE):.1f}" == "2.5"


@pytest.mark.parametrize("dtype", DTYPES)
def test_reading_back_in_every_dtype(dtype):
    source = data(3, 4, dtype=dtype)
    t = source.to(DEVICE)
    assert t.dtype == dtype and t.device.type == "tiny"
    assert torch.equal(t.cpu(), source) and t.tolist() == source.tolist()
    assert t[1, 2].item() == source[1, 2].item()
    assert torch.equal(t.t().cpu(), source.t()) and torch.equal(t[:, ::2].cpu(), source[:, ::2])
    if dtype is not torch.bfloat16:
        assert (t.cpu().numpy() == source.numpy()).all()


def test_python_reads_numbers_out_of_tensors():
    t = torch.tensor([3], device=DEVICE)
    assert int(t) == 3 and float(t) == 3.0 and bool(t) and list(range(5))[t] == 3 and len(t) == 1
    assert [x.item() for x in torch.arange(3, device=DEVICE)] == [0, 1, 2]
    assert 2 in torch.arange(3, device=DEVICE)


def test_numpy_of_a_device_tensor_is_refused_as_on_other_devices():
    with pytest.raises(TypeError, match="can't convert tiny:0 device type tensor to numpy"):
        torch.ones(2, device=DEVICE).numpy()


@pytest.mark.parametrize("source", DTYPES)
def test_copies_convert_between_dtypes_on_and_across_devices(source):
    def program(device):
        t = (
            data(4, 3, dtype=source).abs().to(device)
            if source is not torch.bool
            else data(4, 3, dtype=source, device=device)
        )
        converted = [t.to(other) for other in DTYPES]
        received = [
            torch.zeros(4, 3, dtype=other, device=device).copy_(data(4, 3, dtype=torch.uint8)) for other in DTYPES
        ]
        yield

    both(program, schedules=("lazy",))
    t = data(4, 3, dtype=source)
    for other in DTYPES:
        back = torch.zeros(4, 3, dtype=other)
        back.copy_(t.to(DEVICE).abs() if source not in (torch.bool, torch.uint8) else t.to(DEVICE))
        assert torch.equal(back, (t.abs() if source not in (torch.bool, torch.uint8) else t).to(other))


def test_copies_between_strided_regions_of_both_devices():
    host, target = torch.zeros(6, 6), data(4, 4)
    device_copy = target.to(DEVICE)
    host[1:5, ::2][:, :2].copy_(device_copy.t()[:, ::2])
    want = torch.zeros(6, 6)
    want[1:5, ::2][:, :2] = target.t()[:, ::2]
    assert torch.equal(host, want)
    device_copy[::2].t().copy_(host[1:5, 1:3])
    target[::2].t().copy_(host[1:5, 1:3])
    assert torch.equal(device_copy.cpu(), target)


def test_to_returns_the_same_tensor_where_nothing_changes():
    t = torch.ones(2, device=DEVICE)
    assert t.to(DEVICE) is t and t.to("tiny:0") is t and t.to(torch.float32) is t and t.to(DEVICE, copy=True) is not t
    assert t.to("cpu", torch.float64).dtype is torch.float64
    assert t.to(torch.ones(1)).device.type == "cpu"
    assert torch.ones(2).to(DEVICE, non_blocking=True).tolist() == [1, 1]


def test_a_copy_from_the_host_is_taken_when_it_is_made():
    host = torch.ones(4)
    t = host.to(DEVICE)
    u = torch.zeros(4, device=DEVICE)
    u.copy_(host, non_blocking=True)
    host.fill_(9)
    assert t.tolist() == [1] * 4 and u.tolist() == [1] * 4


def test_tensors_are_made_from_python_and_numpy():
    import numpy

    assert torch.tensor([[1, 2], [3, 4]], device=DEVICE).tolist() == [[1, 2], [3, 4]]
    assert torch.as_tensor(numpy.arange(3.0), device=DEVICE).dtype is torch.float64
    assert torch.asarray([1.5], device=DEVICE).tolist() == [1.5]
    assert torch.from_numpy(numpy.arange(4)).to(DEVICE).sum().item() == 6


# ---------------------------------------------------------------------------------------------- saving and duplicating


def test_save_and_load_keep_device_aliases_and_strides():
    a = data(4, 4, device=DEVICE)
    a.add_(1)
    buffer = io.BytesIO()
    torch.save({"a": a, "view": a.t()[1:], "other": data(2, dtype=torch.int64, device=DEVICE)}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)
    assert loaded["a"].device.type == "tiny" and torch.equal(loaded["a"].cpu(), a.cpu())
    assert loaded["view"].stride() == a.t()[1:].stride()
    loaded["a"].zero_()
    assert loaded["view"].sum().item() == 0
    for where in ("cpu", torch.device("cpu"), {"tiny:0": "cpu"}, lambda storage, location: storage.cpu()):
        buffer.seek(0)
        moved = torch.load(buffer, map_location=where)
        assert moved["a"].device.type == "cpu" and torch.equal(moved["view"], a.t()[1:].cpu())
    saved_on_cpu = io.BytesIO()
    torch.save(torch.arange(3.0), saved_on_cpu)
    saved_on_cpu.seek(0)
    assert torch.load(saved_on_cpu, map_location=DEVICE).device.type == "tiny"


def test_pickle_and_deepcopy_duplicate_values_and_treat_aliases_as_the_cpu_does():
    a = data(3, 3, device=DEVICE)
    for duplicated in (lambda pair: pickle.loads(pickle.dumps(pair)), copy.deepcopy):
        made = duplicated([a, a[1]])
        assert made[0].device.type == "tiny" and torch.equal(made[0].cpu(), a.cpu())
        on_cpu = data(3, 3)
        reference = duplicated([on_cpu, on_cpu[1]])
        made[0].fill_(7)
        reference[0].fill_(7)
        assert made[1].tolist() == reference[1].tolist()
    assert torch.equal(a.cpu(), data(3, 3))
    parameter = nn.Parameter(data(2, device=DEVICE))
    assert (
        isinstance(copy.deepcopy(parameter), nn.Parameter) and copy.copy(parameter).data_ptr() == parameter.data_ptr()
    )


def test_state_dicts_travel_between_devices_with_the_optimizer():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(DEVICE)
    optimizer = torch.optim.Adam(network.parameters())
    x = normal(5, 3, device=DEVICE)
    for _ in range(2):
        optimizer.zero_grad()
        network(x).pow(2).sum().backward()
        optimizer.step()
    buffer = io.BytesIO()
    torch.save([network.state_dict(), optimizer.state_dict()], buffer)
    buffer.seek(0)
    weights, state = torch.load(buffer, map_location="cpu")
    other = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2))
    other.load_state_dict(weights)
    other_optimizer = torch.optim.Adam(other.parameters())
    other_optimizer.load_state_dict(state)
    for net, opt, inputs in ((network, optimizer, x), (other, other_optimizer, x.cpu())):
        opt.zero_grad()
        net(inputs).pow(2).sum().backward()
        opt.step()
    for (key, got), want in zip(network.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}")
    network.load_state_dict(weights)
    assert torch.equal(network[0].weight.cpu(), weights["0.weight"])


# ------------------------------------------------------------------------------------------------------ surroundings


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_data_loader_reach_the_device(workers):
    torch.ones(2, device=DEVICE).sum().item()
    dataset = TensorDataset(torch.arange(10.0).view(10, 1), torch.arange(10))
    seen = []
    for inputs, labels in DataLoader(dataset, batch_size=4, num_workers=workers):
        inputs, labels = inputs.to(DEVICE, non_blocking=True), labels.to(DEVICE)
        assert (inputs.squeeze(1) == labels).all().item()
        seen += labels.tolist()
    assert seen == list(range(10))


def test_pinned_memory_is_answered():
    assert torch.ones(2).is_pinned() is False
    t = torch.ones(3).pin_memory()
    assert t.tolist() == [1, 1, 1] and t.to(DEVICE, non_blocking=True).tolist() == [1, 1, 1]


def test_channels_last_keeps_its_strides_through_layers():
    def program(device):
        torch.manual_seed(0)
        x = normal(2, 3, 6, 6, device=device).to(memory_format=torch.channels_last)
        y = x + 1
        pooled = nn.functional.max_pool2d(x, 2)
        back = y.contiguous()
        weight = normal(4, 3, 3, 3, seed=1, device=device).to(memory_format=torch.channels_last)
        z = nn.functional.conv2d(x, weight)
        yield

    both(program, schedules=("lazy",), rtol=1e-4, atol=1e-5)


def test_default_device_makes_new_tensors_and_modules_there():
    torch.set_default_device(DEVICE)
    try:
        assert torch.zeros(2).device.type == "tiny" and torch.tensor([1, 2]).device.type == "tiny"
        layer = nn.Linear(2, 3)
        assert layer.weight.device.type == "tiny" and layer(torch.ones(1, 2)).shape == (1, 3)
        assert torch.get_default_device().type == "tiny"
    finally:
        torch.set_default_device(None)
    with torch.device(DEVICE):
        assert torch.arange(3).device.type == "tiny"
    assert torch.zeros(2).device.type == "cpu"


def test_inference_mode_and_no_grad_compute_alike():
    network = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(DEVICE).eval()
    x = normal(3, 4, device=DEVICE)
    want = network(x).detach().cpu()
    with torch.inference_mode():
        y = network(x)
        assert y.is_inference() and not y.requires_grad
        view = y[1:]
        y.add_(1)
        assert torch.equal(view.cpu(), y.cpu()[1:])
        torch.testing.assert_close(y.cpu(), want + 1)
    with torch.no_grad():
        torch.testing.assert_close(network(x).cpu(), want)


def test_tensors_of_different_devices_do_not_mix():
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(2, device=DEVICE) + torch.ones(2)
    assert (torch.ones(2, device=DEVICE) + torch.tensor(2.0)).tolist() == [3, 3]
    assert (torch.tensor(2.0) * torch.ones(2, device=DEVICE)).device.type == "tiny"


def test_fork_after_use_is_a_clear_error_in_the_child_and_harmless_to_the_parent():
    printed = in_subprocess(
        """
        import os, sys, torch
        x = torch.ones(4, device="tiny")
        x.sum().item()
        child = os.fork()
        if child == 0:
            try:
                (x + 1).tolist()
            except RuntimeError as error:
                print("refused:", error, flush=True)
                os._exit(3)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), (x + 1).tolist())
        """
    )
    assert "refused:" in printed and "fork" in printed and "spawn" in printed
    assert "3 [2.0, 2.0, 2.0, 2.0]" in printed


def test_two_devices_hold_and_exchange_their_own_tensors():
    printed = in_subprocess(
        """
        import torch
        assert torch.tiny.device_count() == 2
        a, b = torch.ones(3, device="tiny:0"), torch.full((3,), 2.0, device="tiny:1")
        assert (a.device.index, b.device.index) == (0, 1)
        a.add_(4); b.mul_(3)
        assert a.to("tiny:1").device.index == 1 and a.to("tiny:1").tolist() == [5, 5, 5]
        a.copy_(b)
        b.zero_()
        assert a.tolist() == [6, 6, 6] and b.tolist() == [0, 0, 0]
        with torch.tiny.device(1):
            assert torch.empty(1, device="tiny").device.index == 1
        assert torch.tiny.current_device() == 0
        torch.tiny.set_device(1)
        assert torch.zeros(2, device="tiny").device.index == 1
        try:
            a + b
        except RuntimeError as error:
            assert "same device" in str(error)
        else:
            raise SystemExit("mixed devices")
        torch.manual_seed(0)
        x, y = torch.rand(4, device="tiny:0"), torch.rand(4, device="tiny:1")
        torch.manual_seed(0)
        assert torch.rand(4, device="tiny:1").tolist() == y.tolist()
        w = torch.ones(2, device="tiny:1", requires_grad=True)
        (w.to("tiny:0") * 3).sum().backward()
        assert w.grad.device.index == 1 and w.grad.tolist() == [3, 3]
        print("done")
        """,
        TORCH_TINY_DEVICES="2",
    )
    assert printed.split() == ["done"]


def test_threads_record_at_the_same_time_without_losing_anything():
    results: dict[int, list] = {}
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            a = torch.zeros(16, device=DEVICE)
            for i in range(100):
                a[i % 16] += number
                if i % 40 == 39:
                    a.sum().item()
            w = torch.full((4,), float(number), device=DEVICE, requires_grad=True)
            (w * w).sum().backward()
            results[number] = [a.tolist(), w.grad.tolist()]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert not errors and len(results) == 4
    for number, (a, gradient) in results.items():
        assert a == [number * 7.0] * 4 + [number * 6.0] * 12 and gradient == [2.0 * number] * 4


def test_one_tensor_written_by_two_threads_in_turn_keeps_every_write():
    total = torch.zeros(4, device=DEVICE)
    lock = threading.Lock()

    def add(index: int) -> None:
        for _ in range(50):
            with lock:
                total[index] += 1
                total[3] += 1

    threads = [threading.Thread(target=add, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert total.tolist() == [50, 50, 0, 100]


def test_debug_prints_a_line_a_flush():
    code = "import torch; (torch.ones(3, device='tiny') + 1).tolist()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TORCH_TINY_DEBUG": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "flush" in (done.stdout + done.stderr) and "kernel" in (done.stdout + done.stderr)


def test_interpreter_exits_cleanly_with_pending_work():
    in_subprocess("import torch; a = torch.ones(3, device='tiny'); b = a * 2; a[1] = 4; g = torch.Generator('tiny')")
