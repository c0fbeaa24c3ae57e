"""Memory of `torch.tiny`, as `torch.cuda` has it: what is in use, was at most, and may be."""

from __future__ import annotations

from typing import Any

import torch

from . import _C
from .choice import is_host
from .streams import Device, index_of


def memory_stats(device: Device = None) -> dict[str, int]:
    """The allocator's counts, by the names that `torch.cuda.memory_stats` has: `allocated_bytes.all.peak` and so on."""
    return dict(torch.accelerator.memory_stats(index_of(device)))


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    return torch._C._accelerator_getDeviceStats(index_of(device))


def memory_allocated(device: Device = None) -> int:
    """Bytes in buffers now. Pending values have none yet."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: Device = None) -> int:
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: Device = None) -> int:
    """Bytes in buffers, and freed ones kept for reuse."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: Device = None) -> int:
    return torch.accelerator.max_memory_reserved(index_of(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_max_memory_allocated(device: Device = None) -> None:
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Bytes that are free and all there are: of the host, or its container, where the device computes in its memory."""
    return torch.accelerator.get_memory_info(index_of(device))


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Lets this process have that part of the device's memory: beyond it, `torch.OutOfMemoryError` is raised."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    index = index_of(device)
    _C.set_memory_limit(index, int(mem_get_info(index)[1] * fraction) if fraction < 1 else (1 << 64) - 1)


def empty_cache() -> None:
    """Gives freed buffers back to the system."""
    torch.accelerator.empty_cache()


def ipc_collect() -> None:
    """Nothing is held for other processes: tensors sent to one are shared memory, which the system frees."""


def memory_snapshot() -> list[dict[str, Any]]:
    """Mappings of the host's memory, in the form of `torch.cuda.memory_snapshot`: stretches of blocks in use, and
    blocks that are kept for reuse. Devices with memory of their own show none: their drivers keep it."""
    if not is_host():
        return []
    return [_segment(*mapping) for mapping in _C.host_mappings()]


def _segment(address: int, size: int, stretches: list[tuple[int, int, bool]]) -> dict[str, Any]:
    used = sum(size for _, size, in_use in stretches if in_use)
    blocks: list[dict[str, Any]] = [
        {
            "address": begin,
            "size": size,
            "requested_size": size if in_use else 0,
            "state": "active_allocated" if in_use else "inactive",
            "frames": [],
        }
        for begin, size, in_use in stretches
    ]
    return {
        "device": 0,
        "address": address,
        "total_size": size,
        "allocated_size": used,
        "active_size": used,
        "requested_size": used,
        "stream": 0,
        "segment_type": "large" if len(blocks) == 1 else "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


ROWS = {
    "allocated memory": ("allocated_bytes", True),
    "reserved memory": ("reserved_bytes", True),
    "buffers": ("allocation", False),
    "mappings": ("segment", False),
}


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """A table of `memory_stats` to print."""
    stats = memory_stats(device)
    columns = ("current", "peak") if abbreviated else ("current", "peak", "allocated", "freed")
    lines = [f"{'tiny:' + str(index_of(device)):<18}" + "".join(f"{column:>14}" for column in columns)]
    for title, (name, is_bytes) in ROWS.items():
        numbers = [stats[f"{name}.all.{column}"] for column in columns]
        lines.append(f"{title:<18}" + "".join(f"{_short(n) if is_bytes else n:>14}" for n in numbers))
    return "\n".join(lines)


def _short(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"
