"""The suite on devices that need no special hardware: `python -m tests.devices [--selection] [DEVICE ...] [-- ARGS]`.

Runs on those that this machine has, one after the other, and says how the others are to be had. Installs nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

# Device, as DEV names it, and what it takes.
DEVICES = {
    "CL": "apt-get install pocl-opencl-icd ocl-icd-opencl-dev",
    "WEBGPU": "pip install dawn-python, and apt-get install mesa-vulkan-drivers",
    "PYTHON": "nothing: it is tinygrad's emulator",
    "CPU:LLVM": "a libLLVM of version 16 or newer, on LLVM_PATH where there are several",
}
# What `make test` runs on each: for every path that the host does not take, its cheapest tests.
SELECTION = {
    "test_views": "view_of_another_dtype or resize or split_sizes",
    "test_setitem": "three_rows or one_row or column_step",
    "test_write_loops": "read_between or recurrence or diagonal",
    "test_diagonals": "trace_of or fill_diagonal",
    "test_own_memory": "",
    "test_findings": "unneeded or not_zero",
}
# tinygrad's emulator takes a minute for what others do in a second.
SHORT = {"PYTHON": {"test_own_memory": "integers or moves"}}


def environment(device: str) -> dict[str, str]:
    """What a process needs to run on the device. Dawn's wheel is found by its name."""
    found = {**os.environ, "DEV": device}
    wheel = importlib.util.find_spec("pydawn") if device == "WEBGPU" and "WEBGPU_PATH" not in os.environ else None
    if wheel is not None and wheel.origin is not None:
        libraries = sorted(Path(wheel.origin).parent.glob(f"lib/libwebgpu_dawn_{os.uname().machine}.*"))
        found |= {"WEBGPU_PATH": str(libraries[0])} if libraries else {}
    return found


def is_there(device: str) -> bool:
    """Whether tinygrad alone can compute on it."""
    code = "from tinygrad import Tensor; assert (Tensor([1.0] * 8) + 1).tolist() == [2.0] * 8"
    return subprocess.run([sys.executable, "-c", code], env=environment(device), capture_output=True).returncode == 0


def run(device: str, files: dict[str, str], arguments: list[str]) -> bool:
    """Whether the tests of these files, those that a choice names where there is one, pass."""
    passed, folder = True, Path(__file__).parent
    for name, chosen in files.items():
        start = time.perf_counter()
        line = [sys.executable, "-m", "pytest", "-q", "--no-header", str(folder / f"{name}.py"), *arguments]
        done = subprocess.run(
            line + (["-k", chosen] if chosen else []), env=environment(device), capture_output=True, text=True
        )
        summary = (done.stdout.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        print(f"{device}: {name}: {summary} ({time.perf_counter() - start:.0f} s)", flush=True)
        if done.returncode not in (0, 5):  # 5: nothing was chosen
            passed = False
            print(done.stdout[-6000:], done.stderr[-2000:])
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.devices", description=__doc__)
    parser.add_argument("devices", nargs="*", default=list(DEVICES))
    parser.add_argument("--selection", action="store_true", help="a few tests of each kind")
    given, _, rest = "\0".join(sys.argv[1:]).partition("\0--\0")
    options = parser.parse_args(given.split("\0") if given else [])
    everything = {path.stem: "" for path in sorted(Path(__file__).parent.glob("test_*.py"))}
    passed = True
    for device in options.devices:
        if not is_there(device):
            print(f"{device}: left out, it is not here: {DEVICES.get(device, 'tinygrad cannot open it')}")
            continue
        files = SHORT.get(device, SELECTION) if options.selection else everything
        passed &= run(device, files, rest.split("\0") if rest else [])
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
