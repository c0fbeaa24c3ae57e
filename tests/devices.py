"""The suite on devices that need no special hardware:

python -m tests.devices [--selection] [--only FILES] [--conformance i/n] [--report] [DEVICE ...] [-- ARGS]

Runs on those that this machine has, one after the other, and says how the others are to be had. Installs nothing.
`--conformance` runs that part of PyTorch's operator database in float32 instead; `--report` puts what ran into
docs/devices.*.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests import device_report

# Samples of an operator that conformance takes.
SAMPLES = 2
# Device, as DEV names it, and what it takes.
DEVICES = {
    "CL": "apt-get install pocl-opencl-icd ocl-icd-opencl-dev",
    "WEBGPU": "pip install dawn-python, and apt-get install mesa-vulkan-drivers",
    "PYTHON": "nothing: it is tinygrad's emulator",
    "CPU:LLVM": "apt-get install libllvm19, or a newer one; LLVM_PATH names it where there are several",
}
# What `make test` runs on each: for every path that the host does not take, its cheapest tests.
SELECTION = {
    "aliasing/test_views": "view_of_another_dtype or resize or split_sizes",
    "aliasing/test_setitem": "three_rows or one_row or column_step",
    "loops/test_write_loops": "read_between or recurrence or diagonal",
    "aliasing/test_diagonals": "trace_of or fill_diagonal",
    "device/test_own_memory": "not lstm",
    "aliasing/test_findings": "unneeded or not_zero",
    "engine/test_early_reads": "",
    "pytorch/test_streams": "",
    "pytorch/test_memory": "",
}
# tinygrad's emulator takes a minute for what others do in a second.
SHORT = {"PYTHON": {"device/test_own_memory": "integers or moves"}}


def environment(device: str) -> dict[str, str]:
    """What a process needs to run on the device, and not on the CPU, where new traces run otherwise and what does not
    compile. Dawn's wheel is found by its name."""
    found = {"TORCH_TINY_COMPILE": "always", "TORCH_TINY_FALLBACK": "error", **os.environ, "DEV": device}
    wheel = importlib.util.find_spec("pydawn") if device == "WEBGPU" and "WEBGPU_PATH" not in os.environ else None
    if wheel is not None and wheel.origin is not None:
        ending = "dylib" if sys.platform == "darwin" else "so"  # the wheel holds both
        libraries = sorted(Path(wheel.origin).parent.glob(f"lib/libwebgpu_dawn_{os.uname().machine}.{ending}"))
        found |= {"WEBGPU_PATH": str(libraries[0])} if libraries else {}
    return found


def is_there(device: str) -> bool:
    """Whether tinygrad alone can compute on it, with the clang that is found for it."""
    code = "from torch_tinygrad import clang; clang.provide(); "
    code += "from tinygrad import Tensor; assert (Tensor([1.0] * 8) + 1).tolist() == [2.0] * 8"
    return subprocess.run([sys.executable, "-c", code], env=environment(device), capture_output=True).returncode == 0


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def run(
    device: str, files: dict[str, str], arguments: list[str], found: dict[str, Any], save: Callable[[], None]
) -> bool:
    """Whether the tests of these files, those that a choice names where there is one, pass. What they gave is added to
    what was found on the device, and saved file by file: a run that is ended early leaves what it found."""
    passed, folder = True, Path(__file__).parent
    for name, chosen in files.items():
        start = time.perf_counter()
        line = [sys.executable, "-m", "pytest", "-q", "-rfE", "--no-header", str(folder / f"{name}.py"), *arguments]
        done = subprocess.run(
            line + (["-k", chosen] if chosen else []), env=environment(device), capture_output=True, text=True
        )
        summary = (done.stdout.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        print(f"{device}: {name}: {summary} ({time.perf_counter() - start:.0f} s)", flush=True)
        counts = device_report.counts_of(summary) or {"error": int(done.returncode != 5)}
        part = bool(chosen or arguments)
        found.setdefault("tests", {})[name] = {**counts, "part": part, "date": today()}
        save()
        if done.returncode not in (0, 5):  # 5: nothing was chosen
            passed = False
            print(done.stdout[-6000:], done.stderr[-2000:])
    return passed


def run_conformance(device: str, shard: str, found: dict[str, Any]) -> bool:
    """Whether that part of the operators agrees with the CPU, forward and backward."""
    line = [sys.executable, "-m", "torch_tinygrad.conformance", "--dtype", "float32", "--aspect", "forward,backward"]
    line += ["--shard", shard, "--samples", str(SAMPLES), "--timeout", "600"]
    allowing = environment(device) | {"TORCH_TINY_FALLBACK": "warn"}  # what the CPU computes is counted
    done = subprocess.run(line, env=allowing, stdout=subprocess.PIPE, text=True)
    print(f"{device}:\n{done.stdout}", flush=True)
    totals = device_report.totals_of(done.stdout)
    found.setdefault("conformance", {})[shard] = {"totals": totals, "samples": SAMPLES, "date": today()}
    agreed = [n == of for what, (n, of) in totals.items() if what.startswith(("forward", "backward"))]
    return bool(agreed) and all(agreed)


@functools.cache
def lacking(device: str) -> list[str]:
    code = "import torch; torch.empty(1, device='tiny'); from torch_tinygrad.engine.devices import lacking; "
    code += "print(*(str(t).removeprefix('torch.') for t in lacking()))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(device), capture_output=True, text=True)
    return sorted(done.stdout.split())


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.devices", description=__doc__)
    parser.add_argument("devices", nargs="*", default=list(DEVICES))
    parser.add_argument("--selection", action="store_true", help="a few tests of each kind")
    parser.add_argument("--only", metavar="FILES", action="append", help="files whose names begin so, as aliasing/")
    parser.add_argument("--conformance", metavar="i/n", help="that part of PyTorch's operators instead of the suite")
    parser.add_argument("--report", action="store_true", help="renew docs/devices.* with what ran")
    given, _, rest = "\0".join(sys.argv[1:]).partition("\0--\0")
    options = parser.parse_args(given.split("\0") if given else [])
    folder = Path(__file__).parent
    everything = {str(path.relative_to(folder).with_suffix("")): "" for path in sorted(folder.rglob("test_*.py"))}
    if options.only:
        everything = {name: "" for only in options.only for name in everything if name.startswith(only)}
    report = device_report.load()

    writing = threading.Lock()

    def save(device: str) -> None:
        if options.report and device in report:
            report[device]["lacks"] = lacking(device)
            with writing:
                device_report.write(report)

    def check(device: str) -> bool:
        passed = checked(device)
        save(device)
        return passed

    def checked(device: str) -> bool:
        if not is_there(device):
            print(f"{device}: left out, it is not here: {DEVICES.get(device, 'tinygrad cannot open it')}")
            return True
        found = report.setdefault(device, {})
        if options.conformance:
            return run_conformance(device, options.conformance, found)
        files = SHORT.get(device, SELECTION) if options.selection else everything
        passed = run(device, files, rest.split("\0") if rest else [], found, lambda: save(device))
        if options.selection:
            left = f"{len(everything) - len(files)} of {len(everything)} files, and most tests of the others"
            print(f"{device}: left out: {left}; `make test-devices DEVICES={device}` runs all", flush=True)
        return passed

    # A selection is to be quick: devices at the same time. They wait for compilers, each for one, nearly all the time.
    with ThreadPoolExecutor(len(options.devices) if options.selection else 1) as devices:
        passed = list(devices.map(check, options.devices))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
