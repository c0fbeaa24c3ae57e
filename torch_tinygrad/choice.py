"""Which of tinygrad's devices is behind `tiny`: the one that `DEV` names, else the first of tinygrad's that is there.

tinygrad finds out by opening one after the other, which takes a second where there is none. Here only those are opened
of which the system shows a trace; where there is none it is the CPU, and tinygrad is not even imported.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def named(setting: str) -> str:
    """The device in a setting such as `CPU`, `KFD+AMD:LLVM` or `CUDA;CPU:LLVM`; nothing where it names none."""
    return setting.split(";")[0].split("+")[-1].split(":")[0].upper()


def names_compiler() -> bool:
    """Whether `DEV` names more than a device, as `CPU:LLVM`: its types are not those that the CPU has by itself."""
    return ":" in os.environ.get("DEV", "").split(";")[0]


def _has_node(*patterns: str) -> bool:
    return any(next(Path("/dev").glob(pattern), None) is not None for pattern in patterns)


def _has_card(vendor: int) -> bool:
    """Whether a graphics card is on the bus, which tinygrad's own drivers take where they may."""
    if os.geteuid() != 0:
        return False
    for card in Path("/sys/bus/pci/devices").glob("*"):
        try:
            kind, maker = (int((card / name).read_text(), 16) for name in ("class", "vendor"))
        except (OSError, ValueError):
            continue
        if maker == vendor and kind >> 16 in (0x03, 0x12):  # displays, and accelerators without one
            return True
    return False


# In tinygrad's order: a device, and whether the system shows a trace of it.
TRACES: dict[str, Callable[[], bool]] = {
    "METAL": lambda: sys.platform == "darwin",
    "AMD": lambda: _has_node("kfd") or _has_card(0x1002),
    "NV": lambda: _has_node("nvidiactl") or _has_card(0x10DE),
    "CUDA": lambda: _has_node("nvidiactl", "dxg"),
    "QCOM": lambda: _has_node("kgsl-3d0"),
    "CL": lambda: _has_node("dri/renderD*", "nvidiactl", "dxg", "mali*", "kgsl-3d0"),
}


def _opens(device: str) -> bool:
    """Whether it is there, and other hardware than the CPU, which tinygrad drives better by itself than by OpenCL."""
    from tinygrad import Device

    try:
        opened = Device[device]
    except Exception:
        return False
    return device != "CL" or not _is_opencl_cpu(opened)


def _is_opencl_cpu(opened: Any) -> bool:
    import ctypes

    from tinygrad.runtime.autogen import opencl as cl

    kind = ctypes.c_uint64()
    cl.clGetDeviceInfo(opened.cl_dev, cl.CL_DEVICE_TYPE, 8, ctypes.byref(kind), None)
    return bool(kind.value & cl.CL_DEVICE_TYPE_CPU)


def there_are() -> list[str]:
    """The devices that can be named here. Finding out opens them."""
    from tinygrad import Device

    return list(Device.get_available_devices())


def open_chosen() -> None:
    """Raises where the device that was named is not there."""
    from tinygrad import Device

    device = chosen_device()
    try:
        Device[device]
    except Exception as error:
        known = f"it found no {device}" if device in Device._devices else f"it knows no {device}"
        reason = str(error).partition("\n")[0]
        text = f"tiny: DEV={os.environ['DEV']} asks tinygrad for {device}, but {known} ({reason})."
        raise RuntimeError(f"{text} There are: {', '.join(there_are())}.") from None


@functools.cache
def chosen_device() -> str:
    """tinygrad's name for `tiny:0`."""
    if device := named(os.environ.get("DEV", "")):
        return device
    if sys.platform in ("linux", "darwin"):
        return next((device for device, is_there in TRACES.items() if is_there() and _opens(device)), "CPU")
    from tinygrad.device import ALL_DEVICES

    return next(device for device in ALL_DEVICES if _opens(device))


@functools.cache
def is_host() -> bool:
    """Whether kernels read and write the host's own memory. `TORCH_TINY_HOST=0` treats the CPU like any other device,
    which is how the tests run the engine of those."""
    return chosen_device() == "CPU" and os.environ.get("TORCH_TINY_HOST") != "0"


@functools.cache
def library() -> str:
    """PyTorch's own device whose kernels run on the same memory: the CPU's, and CUDA's where PyTorch was built for it
    and finds it. `TORCH_TINY_LIBRARY=0` does without where the memory is not the host's."""
    if is_host():
        return "cpu"
    if os.environ.get("TORCH_TINY_LIBRARY") == "0":
        return ""
    if chosen_device() == "CUDA":
        import torch

        return "cuda" if torch.cuda.is_available() else ""
    return "cpu" if chosen_device() == "CPU" else ""


def tell_tinygrad() -> None:
    """Makes the choice tinygrad's own default. It would put its own into the environment, for all child processes."""
    from dataclasses import replace

    from tinygrad.helpers import DEV

    if not DEV.device:
        first, *others = DEV.value
        DEV.value = [replace(first, device=chosen_device()), *others]
