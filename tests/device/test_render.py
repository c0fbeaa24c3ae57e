"""Code for devices that need not be here: what tinygrad's renderers write for programs of ours."""

import pytest

from tests.differential import ON_TINY
from tests.processes import run

pytestmark = pytest.mark.skipif(not ON_TINY, reason="about the device alone")


def test_sums_of_integers_are_written_in_the_language_of_webgpu():
    code = """
    import torch
    x = torch.arange(8, dtype=torch.int32, device="tiny")
    torch.tiny.synchronize()
    ((x * x + 5) * (x > 2)).cpu()
    """
    settings = {"DEV": "NULL:WGSL:shader-f16", "NULL_ALLOW_COPYOUT": "1", "TORCH_TINY_CACHE": "0", "DEBUG": "4"}
    done = run(code, **settings)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "var<storage" in done.stdout and "(var)" not in done.stdout
