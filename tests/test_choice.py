"""Which device is behind `tiny`: asked for by name or found, without opening what is not there."""

import pytest

from torch_tinygrad.choice import named

from .processes import run


@pytest.mark.parametrize(
    "setting", ["", "CPU", "cpu", ":LLVM", "CPU:LLVM", "KFD+AMD", "PCI:0,1+AMD:LLVM", "CUDA;CPU:LLVM"]
)
def test_settings_are_read_as_tinygrad_reads_them(setting):
    from tinygrad.helpers import Target

    assert named(setting) == Target.parse(setting.split(";")[0]).device


def test_choosing_the_cpu_takes_no_tinygrad():
    code = """
    import sys
    from torch_tinygrad import choice
    choice.TRACES = {device: lambda: False for device in choice.TRACES}
    print(choice.chosen_device(), choice.is_host(), "tinygrad" in sys.modules)
    """
    assert run(code, DEV="").stdout.split() == ["CPU", "True", "False"]


def test_all_devices_of_tinygrad_before_the_cpu_have_a_trace():
    from tinygrad.device import ALL_DEVICES

    from torch_tinygrad.choice import TRACES

    assert list(TRACES) == ALL_DEVICES[: ALL_DEVICES.index("CPU")]


def test_nothing_is_left_in_the_environment():
    code = """
    import os, torch
    before = dict(os.environ)
    (torch.ones(3, device="tiny") + 1).tolist()
    print({name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)})
    """
    done = run(code, DEV="")
    assert done.stdout.strip() == "set()", done.stderr
