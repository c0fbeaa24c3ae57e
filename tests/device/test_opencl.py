"""OpenCL by pocl, which is the CPU's: what is particular to it."""

import pytest

from tests.differential import ON_TINY
from tests.processes import run
from torch_tinygrad.choice import chosen_device

pytestmark = pytest.mark.skipif(not ON_TINY or chosen_device() != "CL", reason="about OpenCL alone")


def test_a_kernel_is_compiled_once_and_found_by_the_next_process(tmp_path):
    """tinygrad has pocl compile it for groups of any size, too. What pocl keeps is a library a kernel and group."""
    code = """
    import torch
    x = torch.arange(64.0, device="tiny")
    torch.tiny.synchronize()
    print((x * 2 + 1).sum().item())
    print(torch.tiny.stats()["kernels"])
    """
    settings = {"POCL_CACHE_DIR": str(tmp_path), "TORCH_TINY_CACHE": "0", "TORCH_TINY_COMPILE": "always"}
    for _ in range(2):
        done = run(code, DEV="CL", **settings)
        assert done.returncode == 0, done.stderr[-2000:]
        number, kernels = done.stdout.split()
        libraries = list(tmp_path.rglob("*.so"))
        if not libraries:
            pytest.skip("another OpenCL than pocl")
        assert float(number) == 4096 and len(libraries) == int(kernels)


def test_its_compiler_says_nothing_on_the_terminal(tmp_path):
    """A kernel that adds up in groups has a condition in double brackets, which clang counts as a warning."""
    code = "import torch; x = torch.ones(64, 64, device='tiny'); print((x @ x).exp().sum(1)[0].item())"
    settings = {"POCL_CACHE_DIR": str(tmp_path / "pocl"), "TORCH_TINY_CACHE": "0", "TORCH_TINY_COMPILE": "always"}
    done = run(code, DEV="CL", **settings)
    assert done.returncode == 0 and not done.stderr


def test_devices_beyond_those_that_opencl_lists_are_the_same_hardware():
    code = """
    import torch
    x = torch.arange(4.0, device="tiny:3")
    torch.tiny.synchronize(3)
    print((x * 2).tolist(), (x.to("tiny:0") + 1).tolist(), torch.tiny.mem_get_info(3)[1] > 0)
    print(torch.tiny.stats()["compiles"])
    """
    done = run(code, DEV="CL", TORCH_TINY_DEVICES="4", TORCH_TINY_COMPILE="always", TORCH_TINY_CACHE="0")
    assert done.stdout.splitlines() == ["[0.0, 2.0, 4.0, 6.0] [1.0, 2.0, 3.0, 4.0] True", "3"], done.stderr[-2000:]
