"""Streams and events of `torch.tiny`, as `torch.cuda` has them. They are PyTorch's own, which belong to the accelerator
where no device is named: all work of a device is in one order, that of recording it, so a stream orders nothing further
and waiting for an event of another takes no time. An event made with `enable_timing` stands for a time: recording it
runs what is pending and waits."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Event, Stream

from . import _C

__all__ = ["Event", "Stream"]

Device = torch.device | int | str | None


def index_of(device: Device) -> int:
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "tiny":
        raise ValueError(f"Expected a tiny device, but got: {device}")
    return _C.current_device() if device.index is None else device.index


def current_stream(device: Device = None) -> Stream:
    return torch._C._accelerator_getStream(index_of(device))


def default_stream(device: Device = None) -> Stream:
    current = current_stream(device)
    return Stream(stream_id=0, device_index=current.device_index, device_type=current.device_type)


def set_stream(stream: Stream | None) -> None:
    if stream is not None:
        torch._C._accelerator_setStream(stream)


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    set_stream(Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


class StreamContext(contextlib.ContextDecorator):
    """Context manager: makes the stream the current one inside it. None changes nothing."""

    def __init__(self, stream: Stream | None):
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self.device = _C.current_device()
        self.previous = current_stream(self.stream.device)
        set_stream(self.stream)

    def __exit__(self, *_: Any) -> None:
        if self.stream is None:
            return
        set_stream(self.previous)
        _C.set_current_device(self.device)


def stream(stream: Stream | None) -> StreamContext:
    return StreamContext(stream)
