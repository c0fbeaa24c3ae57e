"""Finds a clang for tinygrad's CPU device: on PATH, or in the `ziglang` wheel. tinygrad reads it from `CC`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import sys
import zlib
from pathlib import Path


class NoClang(RuntimeError):
    """Neither remedy is there."""


def _zig_wrapper() -> str | None:
    """A one-line script that runs `zig clang`, made once in the user's cache folder."""
    found = importlib.util.find_spec("ziglang")
    if found is None or found.origin is None:
        return None
    zig = Path(found.origin).parent / "zig"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_tinygrad"
    folder.mkdir(parents=True, exist_ok=True)
    wrapper = folder / f"zig-clang-{sys.version_info.major}{sys.version_info.minor}-{zlib.crc32(str(zig).encode()):08x}"
    text = f'#!/bin/sh\nexec "{zig}" clang "$@"\n'
    if not wrapper.exists() or wrapper.read_text() != text:
        temporary = wrapper.with_suffix(f".{os.getpid()}")
        temporary.write_text(text)
        temporary.chmod(temporary.stat().st_mode | stat.S_IXUSR)
        temporary.replace(wrapper)
    return str(wrapper)


def provide() -> None:
    """Sets `CC` so that tinygrad finds a clang, unless it is set already."""
    if os.environ.get("CC") or shutil.which("clang"):
        return
    wrapper = _zig_wrapper()
    if wrapper is None:
        raise NoClang(
            "the CPU device of tinygrad needs clang, and none was found. Install one of: clang itself, so that it is "
            "on PATH (for example `apt install clang`), or the wheel that carries it (`pip install ziglang`)."
        )
    os.environ["CC"] = wrapper


def provide_if_needed() -> None:
    """As `provide`, but content without a clang where tinygrad drives something else than the CPU."""
    try:
        provide()
    except NoClang:
        from tinygrad import Device

        try:
            chosen = Device.DEFAULT
        except RuntimeError:
            chosen = "CPU"
        if chosen.startswith("CPU"):
            raise
