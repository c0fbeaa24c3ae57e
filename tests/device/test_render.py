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
    settings["TORCH_TINY_COMPILE"] = "always"
    done = run(code, **settings)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "var<storage" in done.stdout and "(var)" not in done.stdout


def test_long_loops_of_any_length_are_shared_out_over_groups():
    """1,000,003 is prime: tinygrad would start as many groups of a thread each."""
    code = """
    import torch
    x, i = torch.ones(1_000_003, device="tiny"), torch.zeros(1_000_003, dtype=torch.int64, device="tiny")
    torch.tiny.synchronize()
    (x[i] * 2 + x).cpu()
    """
    settings = {"DEV": "NULL:OPENCL:cl_khr_fp64", "NULL_ALLOW_COPYOUT": "1", "TORCH_TINY_CACHE": "0", "DEBUG": "4"}
    done = run(code, **settings)
    assert done.returncode == 0, done.stderr[-2000:]
    last = done.stdout[done.stdout.rindex("__kernel") :]
    assert "get_local_id(0)" in last and "/* 256 */" in last and "<1000003" in last, last[:2000]


def test_an_expensive_sum_is_written_once_and_computed_once():
    """A norm of fractional order where there is no float64: powers in two parts. tinygrad would write out the sum of
    twenty, and the root, which is stored in parts, would compute it again for each: eleven kernels of 75 KB."""
    code = """
    import torch
    x = torch.ones(4, 5, device="tiny", requires_grad=True)
    torch.tiny.synchronize()
    torch.linalg.vector_norm(x, 1.5).backward()
    x.grad.cpu()
    """
    settings = {"DEV": "NULL:WGSL:shader-f16", "NULL_ALLOW_COPYOUT": "1", "TORCH_TINY_CACHE": "0", "DEBUG": "4"}
    settings |= {"TORCH_TINY_COMPILE": "always", "TORCH_TINY_FALLBACK": "error"}
    done = run(code, **settings)
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = done.stdout.split("@compute")[1:]
    assert 1 <= len(kernels) <= 4 and max(map(len, kernels)) < 20_000, [len(kernel) for kernel in kernels]
