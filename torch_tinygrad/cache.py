"""Where programs are kept on disk, and what they depend on besides their traces."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

from .choice import is_host, library
from .facts import facts, source

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
    parts = [source(), device, platform.machine(), _processor(), f"host={is_host()}", f"library={library()}"]
    if not is_host():
        from tinygrad import Device

        parts.append(repr(Device[device].renderer.target))
    names = {*facts().settings, *ENVIRONMENT} - WATCHING
    parts += [f"{name}={os.environ.get(name)}" for name in sorted(names)]
    parts.append(str(os.environ.get("TORCH_TINY_DEBUG", "0") >= "2"))  # programs then say what they are made of
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _processor() -> str:
    """What the processor can do: machine code is for the one it was compiled on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
