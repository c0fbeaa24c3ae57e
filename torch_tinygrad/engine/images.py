"""Machine code that works at any address and in any process: calls of the C library go by name.

What a compiler leaves is an object file, whose calls tinygrad binds to addresses of this process. Here each symbol
that is called gets a stub at the end of the image: a jump through eight bytes that whoever loads the image fills in.
"""

from __future__ import annotations

import ctypes
import platform

from tinygrad.runtime.autogen import libc
from tinygrad.runtime.support.elf import elf_loader, jit_loader

# A jump through the eight bytes behind it, by processor.
JUMPS = {
    "x86_64": bytes.fromhex("ff2502000000 9090"),  # jmp *[rip+2], then padding
    "aarch64": bytes.fromhex("51000058 20021fd6"),  # ldr x17, 8; br x17
}
JUMPS["AMD64"], JUMPS["arm64"] = JUMPS["x86_64"], JUMPS["aarch64"]


class _Stubs:
    """Stands for a library in which every symbol is found, at the place of its stub."""

    def __init__(self, start: int = 0):
        self._numbers: dict[str, int] = {}
        self._start = start

    def __getattr__(self, name: str) -> ctypes.c_void_p:
        number = self._numbers.setdefault(name, len(self._numbers))
        return ctypes.c_void_p(self._start + number * 16 or 16)  # an address of 0 would be no answer


def image_of(code: bytes) -> tuple[bytes, list[tuple[str, int]]]:
    """The machine code of an object file, and where it expects the address of which symbol."""
    if code[:4] != libc.ELFMAG.encode():
        return code, []
    start = (len(elf_loader(code, link_libs=[_Stubs()])[0]) + 15) // 16 * 16
    stubs = _Stubs(start)
    image = jit_loader(code, 0, [stubs])
    names = stubs._numbers
    if not names:
        return image, []
    jump = JUMPS[platform.machine()]
    image = image.ljust(start, b"\0") + (jump + bytes(8)) * len(names)
    return image, [(name, start + number * 16 + 8) for name, number in names.items()]
