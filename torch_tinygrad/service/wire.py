"""Messages over pipes: eight bytes that say how long it is, then the message."""

from __future__ import annotations

import os


def send(pipe: int, message: bytes) -> None:
    rest = memoryview(len(message).to_bytes(8, "little") + message)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _read(pipe: int, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = os.read(pipe, min(count - len(data), 1 << 20))
        if not piece:
            return None
        data += piece
    return bytes(data)


def receive(pipe: int) -> bytes | None:
    """The next message; nothing where the other side is gone."""
    length = _read(pipe, 8)
    return None if length is None else _read(pipe, int.from_bytes(length, "little"))
