"""Devices with memory of their own: programs, training and fallbacks, on the CPU treated as such a device.

The choice is made once in a process, so each test runs one of its own with `TORCH_TINY_HOST=0`.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tests.differential import ON_TINY
from tests.processes import run

pytestmark = pytest.mark.skipif(not ON_TINY, reason="about the device alone")

ROOT = Path(__file__).parent.parent

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
        from tests.test_training import SMALL, assert_close_losses, built, train

        for name in ("cnn", "transformer"):
            make, batch = SMALL[name]
            network = built(make)
            want, _ = train(network, batch, "cpu", steps=8)
            got, _ = train(network, batch, "tiny", steps=8)
            assert_close_losses(got, want)
        assert torch.tiny.stats()["replays"] > 8
    """,
    "temporaries_of_all_programs_share_memory": """
        from torch_tinygrad.engine.devices import ARENAS

        for n in (256, 64, 512, 128):
            x = torch.full((n, n), 0.5).to("tiny")
            y = (x @ x).softmax(-1) @ (x @ x)
            torch.testing.assert_close(y.sum().item(), n * n * n / 4, rtol=1e-4, atol=0)
        assert len(ARENAS.blocks) == 1
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test(name):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = run("import torch\n" + textwrap.dedent(PROGRAMS[name]), TORCH_TINY_HOST="0", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr[-4000:]
