"""What a trace leaves behind: where each storage's last value is stored, and which names its buffers have.

A storage that had a buffer before is written in place where that is safe: its patches, and whole values that depend on
their old elements one by one. Every such write makes a new version of the buffer under a name of its own
(`in_place.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tinygrad.uop.ops import UOp

from .blocks import Places
from .storages import Flat


@dataclass
class Finished:
    """The stores that carry a graph out, and who is who among their buffers."""

    stores: list[UOp] = field(default_factory=list)
    inputs: dict[UOp, int] = field(default_factory=dict)  # version of a buffer → storage it belongs to
    outputs: dict[UOp, int] = field(default_factory=dict)  # buffer → storage that gets it
    older: dict[UOp, list[UOp]] = field(default_factory=dict)  # version of a buffer → those before it
    replacing: dict[UOp, int] = field(default_factory=dict)  # outputs that would fit where their storage's buffer lies


def finish(flats: list[Flat], device: str, space: Places) -> Finished:
    result = Finished()
    kept = {number: flat for number, flat in enumerate(flats) if flat.storage.live and flat.written}
    for flat in kept.values():  # before any buffer is a storage's: it may become part of another
        flat.settle_patches()
    for number, flat in enumerate(flats):
        if number in kept:
            _store(result, number, flat, device, space)
        if flat.versions is not None:
            result.stores += flat.versions.states  # a version's name does not tell what the ones before it stored
            names = flat.versions.names
            result.inputs |= dict.fromkeys(names, number)
            result.older |= {name: names[:i] for i, name in enumerate(names) if i}
    wholes = {whole for whole, _ in space.inside.values()}  # kernels use them by their parts' names as well
    apart = {*result.inputs, *result.outputs} - wholes - space.inside.keys()
    result.replacing = {
        buffer: number
        for buffer, number in result.outputs.items()
        if _fits(flat := flats[number]) and apart.issuperset({buffer, *flat.versions.names})
    }
    return result


def _store(result: Finished, number: int, flat: Flat, device: str, space: Places) -> None:
    """Adds what leaves the storage's last value in a buffer."""
    assert flat.value is not None
    value, versions = flat.value.uop, flat.versions
    if versions is not None and value is versions.state:
        return
    made = space.stored_state(value)
    if made is not None and made.buf_uop not in result.outputs and made.buf_uop not in space.inside:
        result.outputs[made.buf_uop] = number
        result.stores.append(made)
    elif flat.in_place and _fits(flat) and versions.depends_elementwise(value, versions.state):
        version = versions.begin()
        version.state = version.state.after(version.state.store(value))
        versions.finish(version)
    else:
        target = UOp.new_buffer(device, flat.value.shape[0], flat.value.dtype)
        result.outputs[target] = number
        result.stores.append(target.after(target.store(value)))


def _fits(flat: Flat) -> bool:
    """Whether the value has the type and the size of the buffer that the storage had."""
    buffer = flat.versions.buffer if flat.versions is not None else None
    return buffer is not None and buffer.dtype == flat.value.dtype and buffer.shape == flat.value.uop.shape
