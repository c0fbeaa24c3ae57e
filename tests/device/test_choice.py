"""Which device is behind `tiny`: asked for by name or found, without opening what is not there."""

import pytest
import torch

from tests.processes import run
from torch_tinygrad.choice import is_host, named


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


@pytest.mark.parametrize("device, is_known", [("CUDA", True), ("ABACUS", False)])
def test_a_device_that_is_not_there_is_said_in_one_line(device, is_known):
    from torch_tinygrad import clang
    from torch_tinygrad.choice import there_are

    clang.provide()  # as the device does before it looks
    if device in there_are():
        pytest.skip(f"{device} is here")
    lines = run("import torch; torch.ones(2, device='tiny')", DEV=device).stderr.splitlines()
    (error,) = (line for line in lines if line.startswith("RuntimeError"))  # drivers that are looked for may print, too
    assert f"DEV={device}" in error and ("it found no" if is_known else "it knows no") in error
    assert error.endswith(f"There are: {', '.join(there_are())}.")


def test_opencl_on_the_cpu_does_not_beat_the_cpu():
    """Where the system shows a graphics card, but OpenCL only knows the CPU."""
    code = """
    from torch_tinygrad import choice
    choice.TRACES = {device: lambda device=device: device == "CL" for device in choice.TRACES}
    try:
        from tinygrad import Device
        print(choice._is_opencl_cpu(Device["CL"]), choice.chosen_device())
    except Exception:
        print(True, choice.chosen_device())
    """
    is_cpu, chosen = run(code, DEV="").stdout.split()
    assert chosen == ("CPU" if is_cpu == "True" else "CL")


def test_the_choice_is_said_where_somebody_debugs():
    code = "import torch; torch.ones(2, device='tiny')"
    assert "tiny: the device is tinygrad's CPU (DEV=CPU)\n" in run(code, DEV="CPU", TORCH_TINY_DEBUG="1").stderr
    assert "the device is" not in run(code, DEV="CPU", TORCH_TINY_DEBUG="0").stderr


def test_types_that_a_named_compiler_lacks_are_refused():
    code = """
    import torch
    from torch_tinygrad.engine.devices import lacking
    try:
        torch.ones(2, device="tiny", dtype=torch.float16)
        print("made", torch.float16 in lacking())
    except TypeError:
        print("refused", torch.float16 in lacking())
    """
    done = run(code, DEV="CPU:LLVM", TORCH_TINY_COMPILE="always")
    if "RuntimeError" in done.stderr:
        pytest.skip("LLVM's library is not here")
    assert done.stdout.split() in (["made", "False"], ["refused", "True"])


def test_threads_may_be_the_first_to_use_the_device_at_the_same_time():
    done = run("""
        import sys, threading, torch
        sys.setswitchinterval(1e-6)
        together, sums = threading.Barrier(8), []

        def work():
            together.wait()
            sums.append(torch.ones(3, device="tiny").sum().item())

        threads = [threading.Thread(target=work) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(sums)
    """)
    assert (done.stdout.strip(), done.stderr) == (str([3.0] * 8), "")


@pytest.mark.skipif(not is_host(), reason="tinygrad is imported, whose modules import each other in a circle")
def test_the_first_use_may_be_interrupted_at_any_call_into_python(tmp_path):
    cache = {"TORCH_TINY_CACHE": str(tmp_path / "programs")}
    run("import torch; torch.ones(3, device='tiny').sum().item()", **cache)  # what takes tinygrad to find out is kept
    done = run(
        """
        import sys, torch

        class Interrupt:
            def __init__(self, at):
                self.left, self.raised = at, False

            def __call__(self, frame, event, argument):
                self.left -= event == "call"
                if self.left <= 0 and not self.raised:
                    self.raised = True
                    raise KeyboardInterrupt

        at, tried = 1, 0
        while True:
            interrupt = Interrupt(at)
            sys.setprofile(interrupt)
            try:
                x = torch.ones(3, device="tiny")
            except KeyboardInterrupt:
                tried += 1
            finally:
                sys.setprofile(None)
            if not interrupt.raised:
                break
            at += 1 + at // 16
        print(tried > 20, x.sum().item(), (x[x > 0] + 1).tolist())
    """,
        **cache,
    )
    assert (done.stdout.strip(), done.stderr) == ("True 3.0 [2.0, 2.0, 2.0]", "")


def test_a_device_of_which_nothing_is_special_needs_no_entry():
    """tinygrad's emulator, whose memory alone has one: what is asked of a device is what its renderer says."""
    code = """
    from torch_tinygrad import target
    target.SPECIAL.clear()
    import torch
    x = torch.arange(6.0, device="tiny").view(2, 3)
    x[1] += 5
    y = x.t().clone().requires_grad_()
    (y * x.t() @ x).sum().backward()
    print(y.grad.tolist(), x.sort(descending=True).values.tolist(), target.target().device)
    """
    done = run(code, DEV="PYTHON", TORCH_TINY_COMPILE="always", TORCH_TINY_FALLBACK="error", TORCH_TINY_CACHE="0")
    x = torch.arange(6.0).view(2, 3)
    x[1] += 5
    gradient = x.t() * x.sum(1)
    wanted = f"{gradient.tolist()} {x.sort(descending=True).values.tolist()} PYTHON"
    assert done.stdout.strip() == wanted, done.stderr[-2000:]
