"""The process's one client of the compile service, made at the first request."""

from __future__ import annotations

from .. import _C, cache
from ..choice import chosen_device
from ..trace.nodes import Trace
from .client import Client

_client: Client | None = None


def _failed(key: bytes, reason: str) -> None:
    _C.program_failed(key, reason, _client is not None and _client.known_failure(key) is None)


def client() -> Client:
    global _client
    if _client is None:
        digest = cache.digest(chosen_device())
        _client = Client(_C.program_ready, _failed, digest, _C.load_note, _C.save_note)
    return _client


def request(key: bytes, trace: Trace, varying: list[int], device_index: int, seen: list[list[int]]) -> bool:
    """Asks for the program of a trace, or, where traces like it were `seen`, for one of all of them. False where no
    process can be had: it is then compiled in this one."""
    if not client().available():
        return False
    client().request(key, trace, varying, device_index, seen)
    return True


def wait(timeout: float | None = None) -> bool:
    return _client is None or _client.wait(timeout)
