"""Bad input gets the CPU's exception, and after any failure every tensor has its value and the next operation works."""

from __future__ import annotations

import copy
import signal
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.differential import DEVICE, Cost, data, flush, same_error
from tests.processes import run
from torch_tinygrad.choice import is_host

# name -> what is refused, as a function of the device.
BAD_INPUT = {
    "matmul_shapes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "mm_rank": lambda d: torch.mm(torch.ones(2, device=d), torch.ones(2, 2, device=d)),
    "matmul_dtypes": lambda d: torch.ones(2, 2, device=d) @ torch.ones(2, 2, dtype=torch.float64, device=d),
    "broadcast": lambda d: torch.ones(2, 3, device=d) + torch.ones(4, device=d),
    "cat_shapes": lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(2, 2, device=d)]),
    "cat_nothing": lambda d: torch.cat([]),
    "stack_shapes": lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]),
    "sum_dim": lambda d: torch.ones(2, 3, device=d).sum(2),
    "sum_repeated_dim": lambda d: torch.ones(2, 3, device=d).sum((0, 0)),
    "mean_of_integers": lambda d: torch.ones(3, dtype=torch.int64, device=d).mean(),
    "max_of_nothing": lambda d: torch.ones(0, device=d).max(),
    "argmax_of_nothing": lambda d: torch.ones(0, 3, device=d).argmax(0),
    "softmax_dim": lambda d: torch.ones(3, device=d).softmax(1),
    "softmax_of_integers": lambda d: torch.ones(3, dtype=torch.int64, device=d).softmax(0),
    "conv_channels": lambda d: nn.functional.conv2d(torch.ones(1, 3, 8, 8, device=d), torch.ones(4, 2, 3, 3, device=d)),
    "conv_kernel_size": lambda d: nn.functional.conv2d(
        torch.ones(1, 1, 2, 2, device=d), torch.ones(1, 1, 3, 3, device=d)
    ),
    "conv_dtype": lambda d: nn.functional.conv1d(
        torch.ones(1, 1, 5, device=d), torch.ones(1, 1, 3, dtype=torch.float64, device=d)
    ),
    "pool_size": lambda d: nn.functional.max_pool2d(torch.ones(1, 1, 2, 2, device=d), 3),
    "linear_shapes": lambda d: nn.functional.linear(torch.ones(2, 3, device=d), torch.ones(4, 2, device=d)),
    "layer_norm_shape": lambda d: nn.functional.layer_norm(torch.ones(2, 3, device=d), (4,)),
    "batch_norm_one_value": lambda d: nn.BatchNorm1d(3).to(d)(torch.ones(1, 3, device=d)),
    "embedding_dtype": lambda d: nn.functional.embedding(torch.ones(2, device=d), torch.ones(4, 3, device=d)),
    "cross_entropy_batch": lambda d: nn.functional.cross_entropy(
        torch.ones(2, 3, device=d), torch.zeros(3, dtype=torch.int64, device=d)
    ),
    "gather_dtype": lambda d: torch.ones(3, device=d).gather(0, torch.zeros(2, device=d)),
    "gather_rank": lambda d: torch.ones(3, 3, device=d).gather(0, torch.zeros(2, dtype=torch.int64, device=d)),
    "index_select_rank": lambda d: torch.ones(3, 3, device=d).index_select(
        0, torch.zeros(2, 2, dtype=torch.int64, device=d)
    ),
    "where_dtype": lambda d: torch.where(torch.ones(3, device=d), 1.0, 2.0),
    "topk_too_many": lambda d: torch.ones(3, device=d).topk(4),
    "item_of_many": lambda d: torch.ones(3, device=d).item(),
    "bool_of_many": lambda d: bool(torch.ones(3, device=d)),
    "arange_sign": lambda d: torch.arange(0, 3, -1, device=d),
    "zeros_negative": lambda d: torch.zeros(-1, device=d),
    "integer_power": lambda d: torch.ones(2, dtype=torch.int64, device=d) ** -1,
    "sub_bool": lambda d: torch.ones(2, dtype=torch.bool, device=d) - torch.ones(2, dtype=torch.bool, device=d),
    "bitwise_float": lambda d: torch.ones(2, device=d) & 1,
    "dropout_probability": lambda d: nn.functional.dropout(torch.ones(2, device=d), 1.5),
    "normal_std": lambda d: torch.empty(2, device=d).normal_(0, -1),
    "uniform_range": lambda d: torch.empty(2, device=d).uniform_(1, 0),
    "random_range": lambda d: torch.randint(3, 3, (2,), device=d),
    "multinomial_count": lambda d: torch.multinomial(torch.ones(2, device=d), 3),
    "out_dtype": lambda d: torch.add(torch.ones(2, device=d), 1, out=torch.ones(2, dtype=torch.int64, device=d)),
    "repeat_rank": lambda d: torch.ones(2, 2, device=d).repeat(2),
    "roll_shapes": lambda d: torch.ones(2, 2, device=d).roll((1, 1), 0),
    "backward_of_many": lambda d: torch.ones(2, device=d, requires_grad=True).mul(2).backward(),
    "backward_without_graph": lambda d: torch.ones((), device=d).backward(),
    "einsum_shapes": lambda d: torch.einsum("ij,jk", torch.ones(2, 3, device=d), torch.ones(2, 2, device=d)),
    "view_as_real": lambda d: torch.view_as_real(torch.ones(2, device=d)),
    "cholesky_not_positive": lambda d: torch.linalg.cholesky(-torch.eye(2, device=d)),
    "inv_singular": lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_gets_the_exception_of_the_cpu(name):
    assert same_error(BAD_INPUT[name])


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_leaves_pending_work_alone(name):
    pending = data(5, device=DEVICE) * 2
    view = pending[1:3]
    pending[0] = 9
    with pytest.raises(Exception) as caught:
        BAD_INPUT[name](DEVICE)
    assert caught.value is not None
    want = data(5) * 2
    want[0] = 9
    assert pending.tolist() == want.tolist() and view.tolist() == want[1:3].tolist()


class Broken(RuntimeError):
    """Raised by a lowering that is made to fail."""


@pytest.fixture
def broken_lowering(monkeypatch):
    """Makes the lowering of `erfc` fail until it is told to stop."""
    from torch_tinygrad.lower.registry import LOWERINGS

    working = LOWERINGS["aten::erfc"]

    def fail(*args, **kwargs):
        raise Broken("this lowering is broken on purpose")

    monkeypatch.setitem(LOWERINGS, "aten::erfc", replace(working, function=fail))
    return lambda: monkeypatch.setitem(LOWERINGS, "aten::erfc", working)


@torch.tiny.compile_mode("always")
def test_lowering_that_fails_costs_speed_alone(broken_lowering):
    torch.tiny.reset_stats()
    realized = data(7, device=DEVICE)
    pending = realized * 3
    result = torch.erfc(pending)
    view, other = pending[2:5], torch.zeros(7, device=DEVICE)
    other[1] = 5
    view.add_(1)
    torch.testing.assert_close(result.cpu(), torch.erfc(data(7) * 3))
    want = data(7) * 3
    want[2:5] += 1
    assert pending.tolist() == want.tolist() and other.tolist() == [0, 5, 0, 0, 0, 0, 0]
    stats = torch.tiny.stats()
    assert stats["direct"] == 1
    assert [count for reason, count in stats["not_compiled"].items() if "broken on purpose" in reason] == [1]


@torch.tiny.compile_mode("always")
def test_lowering_that_fails_is_an_error_where_fallbacks_are_and_loses_nothing(broken_lowering, monkeypatch):
    monkeypatch.setenv("TORCH_TINY_FALLBACK", "error")
    a, b = data(7, device=DEVICE), data(7, seed=1, device=DEVICE)
    b.add_(1)
    a.erfc_()
    with pytest.raises(Exception, match="broken on purpose"):
        flush()
    assert b.tolist() == (data(7, seed=1) + 1).tolist()
    torch.testing.assert_close(a.cpu(), torch.erfc(data(7)))


@torch.tiny.compile_mode("always")
def test_keyboard_interrupt_during_a_compile_loses_nothing(monkeypatch):
    from torch_tinygrad.lower.registry import LOWERINGS

    working = LOWERINGS["aten::erfc"]

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setitem(LOWERINGS, "aten::erfc", replace(working, function=interrupt))
    a = data(9, device=DEVICE)
    a[0] = 3
    b = torch.erfc(a)
    with pytest.raises(KeyboardInterrupt):
        b.tolist()
    monkeypatch.setitem(LOWERINGS, "aten::erfc", working)
    want = data(9)
    want[0] = 3
    assert a.tolist() == want.tolist()
    torch.testing.assert_close(b.cpu(), torch.erfc(want))


@torch.tiny.compile_mode("always")
def test_interrupt_while_a_compile_finalises_an_object_is_not_dropped(monkeypatch):
    from torch_tinygrad.lower.registry import LOWERINGS

    class Interrupted:
        def __del__(self):
            raise KeyboardInterrupt

    def lowering(*args, **kwargs):
        Interrupted()
        for _ in range(6000):
            time.sleep(0.01)

    working = LOWERINGS["aten::erfc"]
    b = torch.erfc(data(9, device=DEVICE))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what is started in the background
    with monkeypatch.context() as patched:
        patched.setitem(LOWERINGS, "aten::erfc", replace(working, function=lowering))
        with pytest.raises(KeyboardInterrupt):
            b.tolist()
    signal.signal(signal.SIGINT, before)
    torch.testing.assert_close(b.cpu(), torch.erfc(data(9)))


def test_signal_during_a_compile_interrupts_and_loses_nothing():
    done = run(
        """
        import os, signal, threading, torch
        signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs are started with it ignored
        a = torch.ones(64, device="tiny")
        a.tolist()
        kept = a * 2
        kept.tolist()
        xs = [torch.full((i + 3,), 1.0, device="tiny").exp().sin() for i in range(200)]
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            torch.tiny.synchronize()
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted")
        assert a.tolist() == [1.0] * 64 and kept.tolist() == [2.0] * 64
        xs = xs[:2]
        torch.testing.assert_close(xs[1].cpu(), torch.full((4,), 1.0).exp().sin())
        print("works")
        """,
        CACHELEVEL="0",
    )
    assert done.returncode == 0 and done.stdout.split("\n")[:2] == ["interrupted", "works"], done.stdout + done.stderr


@pytest.mark.skipif(not is_host(), reason="kernels of this device are compiled by its driver")
def test_compiler_that_fails_costs_speed_alone(tmp_path):
    failing = tmp_path / "clang"
    failing.write_text('#!/bin/sh\ntest "$1" = --version && echo clang version 0\n')
    failing.chmod(0o755)
    done = run(
        """
        import os, torch
        a = torch.arange(6.0, device="tiny")
        b = (a * 2).clone()
        print(b.tolist())
        working = os.environ.get("CC")
        os.environ["CC"] = os.environ["FAILING"]
        c = b.cos() + a * 17
        torch.testing.assert_close(c.cpu(), b.cpu().cos() + a.cpu() * 17)
        print(torch.tiny.stats()["direct"], sum(torch.tiny.stats()["not_compiled"].values()))
        print(a.tolist(), b.tolist())
        del os.environ["CC"]
        os.environ.update({"CC": working} if working else {})
        print((b.cos() - b.cos() + a).tolist() == a.tolist())
        """,
        CACHELEVEL="0",
        FAILING=str(failing),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts, values, afterwards = done.stdout.splitlines()[-3:]
    assert (
        counts == "1 1"
        and values == "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0] [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]"
        and afterwards == "True"
    )


@pytest.mark.parametrize("mode", ["auto", "always"])
def test_missing_compiler_names_both_remedies_once_and_all_works(mode):
    code = """
    import sys
    sys.modules["ziglang"] = None
    import torch
    for _ in range(4):
        print((torch.ones(3, device="tiny") + 1).tolist())
    """
    done = run(code, CC="", PATH="/nowhere", CACHELEVEL="0", TORCH_TINY_COMPILE=mode)
    assert done.returncode == 0 and done.stdout == "[2.0, 2.0, 2.0]\n" * 4, done.stderr
    assert done.stderr.count("pip install ziglang") == 1 and "clang itself" in done.stderr


def test_out_of_memory_is_an_error_and_values_stay():
    a = data(5, device=DEVICE)
    huge = torch.empty(1 << 45, dtype=torch.uint8, device="meta")
    with pytest.raises(RuntimeError, match="memory|alloc"):
        torch.zeros(huge.shape, dtype=torch.uint8, device=DEVICE).add_(1).sum().item()
    assert (a + 1).tolist() == (data(5) + 1).tolist()


FALLBACK = "torch.linalg.eigh(torch.full((3, 3), 0.5, device='tiny') + torch.eye(3, device='tiny'))"


def test_fallback_is_counted_by_name_and_warned_about_once():
    done = run(
        f"""
        import torch
        first, _ = {FALLBACK}
        values, vectors = {FALLBACK}
        want = torch.full((3, 3), 0.5) + torch.eye(3)
        torch.testing.assert_close((vectors * values @ vectors.mT).cpu(), want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(first.cpu(), values.cpu())
        print({{name: count for name, count in torch.tiny.stats()["fallbacks"].items() if "eigh" in name}})
        """
    )
    assert done.returncode == 0, done.stderr
    assert "linalg_eigh" in done.stdout and ": 2" in done.stdout
    assert done.stderr.count("linalg_eigh") == 1


def test_fallback_is_an_error_where_it_is_forbidden():
    done = run(f"import torch; {FALLBACK}[0].tolist()", TORCH_TINY_FALLBACK="error")
    assert done.returncode != 0 and "linalg_eigh" in done.stderr


def test_a_fallback_that_is_found_when_all_is_computed_is_refused_once(monkeypatch):
    """A layer of an encoder with a mask: only the compiler sees that no kernel takes it. What was to be an error was
    raised at every flush from then on."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True).eval()
    x, mask = data(3, 5, 16), torch.ones(5, 5).triu(1).bool()
    with torch.no_grad(), torch.tiny.compile_mode("always"):
        want = layer(x, src_mask=mask)
        found = copy.deepcopy(layer).to(DEVICE)(x.to(DEVICE), src_mask=mask.to(DEVICE))
        monkeypatch.setenv("TORCH_TINY_FALLBACK", "error")
        with pytest.raises(NotImplementedError, match="_transformer_encoder_layer_fwd"):
            found.cpu()
        torch.testing.assert_close(found.cpu(), want, rtol=1e-4, atol=1e-5)


def test_failures_do_not_stop_replays_of_other_programs(broken_lowering):
    def good():
        return (torch.arange(13.0, device=DEVICE) * 3 + 1).tolist()

    good()
    torch.erfc(data(3, device=DEVICE)).tolist()
    with Cost() as cost:
        assert good() == (torch.arange(13.0) * 3 + 1).tolist()
    cost.expect(compiles=0)


def test_a_compiling_process_that_is_killed_costs_speed_alone():
    done = run(
        """
        import os, torch
        from tests.faults import children, command_line, killing

        def workers():
            return [pid for pid in children(os.getpid()) if "--multiprocessing-fork" in command_line(pid)]

        def program(device):
            x, made = torch.arange(24.0, device=device).reshape(4, 6), []
            for n in range(12):
                x = x.flip(n % 2).cumsum(n % 2) % 7
                made += [x.sum(n % 2), x.sort(1)[0]]
            return made

        made = program("tiny")
        with killing(workers):
            torch.tiny.synchronize()
        print(torch.tiny.stats()["direct"], torch.tiny.stats()["not_compiled"])
        print(all(torch.equal(a, b.cpu()) for a, b in zip(program("cpu"), made)))
        """,
        CACHELEVEL="0",
        PARALLEL="2",  # tinygrad shares the cores out among pytest's workers
        TORCH_TINY_CACHE="0",
        TORCH_TINY_COMPILE="always",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["1 {'a process that compiled kernels was ended': 1}", "True"], done.stdout
