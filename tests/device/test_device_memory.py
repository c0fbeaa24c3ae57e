"""Devices with memory of their own: programs, training and fallbacks, on the CPU treated as such a device.

The choice is made once in a process, so each test runs one of its own with `TORCH_TINY_HOST=0`. With the library,
PyTorch's kernels run on that memory, as its CUDA kernels do on a GPU, and programs have steps of ATen's. Without it, as
on OpenCL, WebGPU or Metal, what runs directly runs in the CPU's own memory, on copies.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tests.differential import ON_TINY
from tests.processes import run

pytestmark = pytest.mark.skipif(not ON_TINY, reason="about the device alone")

ROOT = Path(__file__).parents[2]

PROGRAMS = {
    "views_and_writes_agree_with_the_cpu": """
        from tests.differential import both, data

        def views(device):
            a = data(6, 8, device=device)
            b, c = a[1:5:2], a.t()[2:4]
            yield
            b.add_(1)
            yield
            c[0] = a[:, 3] * 2
            yield
            a.view(-1)[::5] = -1
            d = a.view(torch.int32)[0].clone()
            yield
            return a.sum(0), b * 2, c.sum(), d

        both(views)
    """,
    "parts_of_storages_go_up_and_down": """
        whole = torch.arange(100, dtype=torch.int16).to("tiny")
        assert whole[37:41].tolist() == [37, 38, 39, 40]
        whole[10:20].copy_(torch.full((10,), -3, dtype=torch.int16))
        assert whole.cpu()[8:22].tolist() == [8, 9, *[-3] * 10, 20, 21]
        big = torch.arange(9 << 20, dtype=torch.int32)
        assert torch.equal(big.to("tiny").cpu(), big)
    """,
    "lifted_numbers_reach_replayed_programs": """
        x = torch.ones(4, device="tiny")
        expected = 1.0
        for step in range(6):
            x.mul_(1 + step / 3).add_(step)
            expected = expected * (1 + step / 3) + step
            assert abs(x[2].item() - expected) < 1e-3 * expected
        torch.manual_seed(3)
        draws = [torch.rand(8, device="tiny").cpu() for _ in range(4)]
        assert len({tuple(d.tolist()) for d in draws}) == 4
    """,
    "operators_without_a_lowering_run_on_the_cpu": """
        import warnings

        warnings.simplefilter("ignore")
        a = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
        symmetric = a @ a.t()
        on_device = symmetric.to("tiny")
        values = torch.linalg.eigvalsh(on_device + 1) * 2
        torch.testing.assert_close(values.cpu(), torch.linalg.eigvalsh(symmetric + 1) * 2)
        assert torch.tiny.stats()["fallbacks"]
    """,
    "training_follows_the_cpu_and_replays": """
        from tests import models
        from tests.networks.test_training import SMALL, assert_close_losses, built, train

        for name in ("cnn", "transformer"):
            make, batch = SMALL[name]
            network = built(make)
            want, _ = train(network, batch, "cpu", steps=8)
            got, _ = train(network, batch, "tiny", steps=8)
            assert_close_losses(got, want)
        stats = torch.tiny.stats()
        assert stats["replays"] > 8 or (MIXED and stats["direct"] and stats["replays"])
    """,
    "temporaries_of_all_programs_share_memory": """
        from torch_tinygrad.engine.devices import ARENAS

        for n in (256, 64, 512, 128):
            x = torch.full((n, n), 0.5).to("tiny")
            y = (x @ x).softmax(-1) @ (x @ x)
            torch.testing.assert_close(y.sum().item(), n * n * n / 4, rtol=1e-4, atol=0)
        assert len(ARENAS.blocks) == 1
    """,
    "a_new_trace_runs_directly_and_its_program_is_taken_up": """
        def step(x, weight):
            return (x @ weight).relu().cumsum(1).sum(0)

        x, weight = torch.randn(64, 64), torch.randn(64, 64)
        on_device = x.to("tiny"), weight.to("tiny")
        for i in range(5):
            torch.testing.assert_close(step(*on_device).cpu(), step(x, weight), rtol=1e-4, atol=1e-3)
            torch.tiny.wait_for_compiles()
        stats = torch.tiny.stats()
        assert (stats["direct"], stats["compiles"], stats["replays"], stats["not_compiled"]) == (2, 1, 2, {}), stats
    """,
    "selections_are_steps_of_the_library": """
        x = torch.randn(96, 200, generator=torch.Generator().manual_seed(1))
        on_device = x.to("tiny")
        rows = torch.arange(0, 96, 5)
        for name, f in {
            "sort": lambda t: t.sort(stable=True, dim=1),
            "topk": lambda t: t.topk(7),
            "cumsum": lambda t: (t.cumsum(0),),
            "max": lambda t: t.max(1),
            "sum": lambda t: ((t + 1).sum(0) * 2, t.sum((0,), dtype=torch.float64)),
            "select": lambda t: (t.index_select(0, rows.to(t.device)), t[t > 0.5]),
            "norm": lambda t: torch.func.grad(lambda u: torch.nn.functional.layer_norm(u, (200,)).square().sum())(t),
            "loss": lambda t: (torch.nn.functional.cross_entropy(t, torch.arange(96, device=t.device)),),
        }.items():
            for got, want in zip(f(on_device), f(x), strict=True):
                torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4, msg=lambda m: f"{name}: {m}")
        assert not torch.tiny.stats()["fallbacks"]
    """,
    "programs_that_save_nothing_are_not_run": """
        x = torch.randn(200, 100, generator=torch.Generator().manual_seed(1))
        on_device = x.to("tiny")
        for _ in range(5):
            assert torch.equal(on_device.sort(stable=True).values.cpu(), x.sort(stable=True).values)
            torch.tiny.wait_for_compiles()
        stats = torch.tiny.stats()
        assert (stats["direct"], stats["replays"]) == (5, 0), stats
        for _ in range(5):
            torch.testing.assert_close(((on_device * 2).relu() + 1).cpu(), (x * 2).relu() + 1)
            torch.tiny.wait_for_compiles()
        assert torch.tiny.stats()["replays"] >= 2, torch.tiny.stats()
    """,
    "places_are_found_in_one_go": """
        m = torch.rand(33, 47, 5, generator=torch.Generator().manual_seed(1)) > 0.5
        on_device = m.to("tiny")
        torch.tiny.reset_stats()
        places, wanted = on_device[:, ::2].nonzero(), m[:, ::2].nonzero()
        assert torch.tiny.stats()["nodes"] == 0, torch.tiny.stats()
        assert places.stride() == wanted.stride() and torch.equal(places.cpu(), wanted)
        assert (on_device & False).nonzero().shape == (0, 3)
        assert torch.ones(3, device="tiny").sum().nonzero().shape == (1, 0)
        x = torch.arange(33 * 47 * 5.0).view(m.shape)
        assert torch.equal(x.to("tiny")[on_device].cpu(), x[m])
        places.add_(1)
        assert torch.equal(places.cpu(), wanted + 1)
    """,
    "kept_results_are_taken_again_when_nobody_has_them": """
        from torch_tinygrad.engine import devices, remote

        plain = remote.RemoteProgram.__init__

        def keeping(self, plan, device):
            plain(self, plan, device)
            self.kept = devices.Kept(device, self.output_bytes)

        remote.RemoteProgram.__init__ = keeping
        x = torch.arange(4000.0).to("tiny")
        results = [(x * 3 + 1).view(40, 100)[1:] for _ in range(3) if not torch.tiny.synchronize()]
        torch.tiny.synchronize()
        for result in results:
            result.add_(1)
            torch.tiny.synchronize()
        for result in results:
            assert torch.equal(result.cpu(), (torch.arange(4000.0) * 3 + 2).view(40, 100)[1:])
        del results, result

        places = []
        plain_run = remote.RemoteProgram.run

        def watched(self, inputs, numbers):
            outputs = plain_run(self, inputs, numbers)
            places.extend(buffer.owner.data_ptr() for buffer in outputs)
            return outputs

        remote.RemoteProgram.run = watched
        for _ in range(4):
            y = (x * 3 + 1).sum(0, keepdim=True) * x
            torch.tiny.synchronize()
            torch.testing.assert_close(y.cpu(), (torch.arange(4000.0) * 3 + 1).sum() * torch.arange(4000.0))
            del y
        assert len(places) == 4 and len(set(places)) == 1, places
    """,
    "library_steps_keep_no_memory": """
        import gc, weakref

        x = torch.randn(64, 64).to("tiny")
        for _ in range(3):
            y = x @ x
            torch.tiny.synchronize()
        from torch_tinygrad.engine import remote

        outputs = []
        plain_run = remote.RemoteProgram.run

        def watched(self, inputs, numbers):
            found = plain_run(self, inputs, numbers)
            outputs.extend(weakref.ref(buffer.owner) for buffer in found)
            return found

        remote.RemoteProgram.run = watched
        y = x @ x
        torch.tiny.synchronize()
        assert outputs and all(owner() is not None for owner in outputs)
        remote.RemoteProgram.run = plain_run
        del y
        (x + 1).sum().item()
        gc.collect()
        assert all(owner() is None for owner in outputs)
    """,
    "both_ways_see_what_the_other_wrote": """
        want, there = torch.arange(24.0).view(4, 6), torch.arange(24.0).view(4, 6).to("tiny")
        views = [(t, t[1:3], t.t()[2], t.view(-1)[::5]) for t in (want, there)]
        ways = "always never never always always never always never never always".split()
        for i, mode in enumerate(ways * 3):
            torch.tiny.compile_mode(mode)
            sums = []
            for whole, rows, column, some in views:
                if i % 3 == 0:
                    rows.mul_(0.5).add_(i)
                elif i % 3 == 1:
                    column.copy_(whole[:, 0] - i)
                else:
                    some[1:] = some[:-1] * 0.5
                sums.append((whole * 2).sum(0) + column.sum())
            torch.testing.assert_close(sums[1].cpu(), sums[0], msg=lambda m: f"{mode} {i}: {m}")
            torch.testing.assert_close(there.cpu(), want, msg=lambda m: f"{mode} {i}: {m}")
        stats = torch.tiny.stats()
        assert stats["direct"] >= 15 and stats["replays"] > 5, stats
        assert torch.tiny.memory_allocated() < 2000
    """,
    "what_only_the_device_does_fast_is_compiled_at_once": """
        index, x = torch.zeros(1, dtype=torch.int64).to("tiny"), torch.ones(1).to("tiny")
        assert x.expand(1 << 25).gather(0, index.expand(1 << 25)).sum().item() == 1 << 25
        stats = torch.tiny.stats()
        assert (stats["direct"], stats["compiles"]) == (0, 1), stats
    """,
    "repeatable_results_are_the_devices_own": """
        torch.use_deterministic_algorithms(True)
        x = torch.ones(8, 8).to("tiny")
        assert [(x @ x).sum().item() for _ in range(3)] == [512.0] * 3
        stats = torch.tiny.stats()
        assert stats["direct"] == 0 and stats["compiles"] and stats["replays"], stats
    """,
    "a_second_device_has_memory_of_its_own": """
        x = [torch.arange(6.0).to(f"tiny:{i}") for i in (0, 1)]
        x[1].mul_(2)
        assert x[0].tolist() == [0, 1, 2, 3, 4, 5] and x[1].tolist() == [0, 2, 4, 6, 8, 10]
        assert (x[0] + x[1].to("tiny:0")).tolist() == [0, 3, 6, 9, 12, 15]
        assert torch.tiny.memory_allocated(1) > 0
        try:
            (x[0] + x[1]).tolist()
            raise AssertionError("on two devices")
        except RuntimeError as error:
            assert "tiny:0" in str(error) and "tiny:1" in str(error)
    """,
    "no_memory_for_a_program_costs_nothing": """
        a = torch.ones(1000, device="tiny")
        a.add_(100)
        try:
            torch.ones(1 << 44, device="tiny").sum().item()
            raise AssertionError("there is that much memory")
        except RuntimeError:
            pass
        assert a.sum().item() == 101_000
    """,
}
# Which of them run with the library, and how.
WITH_LIBRARY = [
    ("views_and_writes_agree_with_the_cpu", "mixed"),
    ("parts_of_storages_go_up_and_down", "mixed"),
    ("lifted_numbers_reach_replayed_programs", "mixed"),
    ("training_follows_the_cpu_and_replays", "mixed"),
    ("training_follows_the_cpu_and_replays", "always"),
    ("temporaries_of_all_programs_share_memory", "always"),
    ("selections_are_steps_of_the_library", "always"),
    ("places_are_found_in_one_go", "always"),
    ("programs_that_save_nothing_are_not_run", "auto"),
    ("kept_results_are_taken_again_when_nobody_has_them", "always"),
    ("library_steps_keep_no_memory", "always"),
    ("a_new_trace_runs_directly_and_its_program_is_taken_up", "auto"),
    ("no_memory_for_a_program_costs_nothing", "auto"),
]
# Without it.
WITHOUT_LIBRARY = [
    ("views_and_writes_agree_with_the_cpu", "mixed"),
    ("parts_of_storages_go_up_and_down", "mixed"),
    ("lifted_numbers_reach_replayed_programs", "mixed"),
    ("operators_without_a_lowering_run_on_the_cpu", "always"),
    ("training_follows_the_cpu_and_replays", "mixed"),
    ("training_follows_the_cpu_and_replays", "always"),
    ("temporaries_of_all_programs_share_memory", "always"),
    ("a_new_trace_runs_directly_and_its_program_is_taken_up", "auto"),
    ("both_ways_see_what_the_other_wrote", "auto"),
    ("a_second_device_has_memory_of_its_own", "mixed"),
    ("what_only_the_device_does_fast_is_compiled_at_once", "auto"),
    ("repeatable_results_are_the_devices_own", "auto"),
    ("no_memory_for_a_program_costs_nothing", "auto"),
]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where the tests of a library find what others have compiled; those in mode `auto` count compiles."""
    return tmp_path_factory.mktemp("programs")


def run_program(name: str, **settings: str) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    settings |= {"TORCH_TINY_HOST": "0", "TORCH_TINY_DEVICES": "2", "PYTHONPATH": path}
    mixed = settings.get("TORCH_TINY_COMPILE") == "mixed"
    done = run(f"import torch\nMIXED = {mixed}\n" + textwrap.dedent(PROGRAMS[name]), **settings)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize(("name", "mode"), WITHOUT_LIBRARY)
def test_without_the_library(name, mode, kept, tmp_path):
    folder = tmp_path if mode == "auto" else kept / "without"
    run_program(name, TORCH_TINY_LIBRARY="0", TORCH_TINY_COMPILE=mode, TORCH_TINY_CACHE=str(folder))


@pytest.mark.parametrize(("name", "mode"), WITH_LIBRARY)
def test_with_the_library(name, mode, kept, tmp_path):
    folder = tmp_path if mode == "auto" else kept / "with"
    run_program(name, TORCH_TINY_COMPILE=mode, TORCH_TINY_CACHE=str(folder))
