"""Where programs are kept on disk, and what they depend on besides their traces."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import tinygrad
import torch
from tinygrad import Device
from tinygrad.helpers import ContextVar

from . import _C
from .choice import is_host
from .engine import explain

BOUND = 512 << 20  # bytes of programs; the least recently used go first

# Settings of tinygrad that it reads from the environment alone, and of the others those that change no kernel.
ENVIRONMENT = ("CC", "CPU_COUNT", "THREADS", "REDUCEOP_SPLIT_THRESHOLD", "REDUCEOP_SPLIT_SIZE", "MV", "ALLOW_HALF8")
WATCHING = {"DEBUG", "VIZ", "PROFILE", "PARALLEL", "NO_COLOR", "SPEC", "CACHELEVEL"}


def folder() -> str:
    """TORCH_TINY_CACHE, or the user's folder for caches; nothing where it is 0."""
    chosen = os.environ.get("TORCH_TINY_CACHE")
    if chosen == "0":
        return ""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.abspath(chosen or os.path.join(caches, "torch-tinygrad"))


def digest(device: str) -> str:
    """Of everything that makes other programs of the same trace: versions, our own source, processor, settings."""
    found = hashlib.blake2b(digest_size=16)
    parts = [torch.__version__, _tinygrad(), device, platform.machine(), _processor()]
    parts += [repr(Device[device].renderer.target), f"host={is_host()}"]
    parts += [f"{name}={os.environ.get(name)}" for name in ENVIRONMENT]
    parts += [f"{name}={setting.value}" for name, setting in sorted(ContextVar._cache.items()) if name not in WATCHING]
    parts.append(str(explain.wanted()))  # programs then say what they are made of
    parts += [path.read_text() for path in sorted(Path(__file__).parent.rglob("*.py"))]
    built = os.stat(_C.__file__)
    parts.append(f"{built.st_size} {built.st_mtime_ns}")
    for part in parts:
        found.update(part.encode() + b"\0")
    return found.hexdigest()


def _tinygrad() -> str:
    """Its version; of a checkout, which has none, the state of its files."""
    try:
        return version("tinygrad")
    except PackageNotFoundError:
        files = sorted(Path(tinygrad.__file__).parent.rglob("*.py"))
        return "".join(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}\n" for file in files)


def _processor() -> str:
    """What the processor can do: machine code is for the one it was compiled on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
