"""Storages as values: one flat tensor per storage, read and written through strided regions.

A write to part of a storage is kept as a patch: later reads see it, and in the end the patches compose into one value,
or, where the storage had a buffer already, only they are stored, into the same buffer (see `in_place.py`). Where they
are buffers of their own that make up all of it, they are laid side by side (see `blocks.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType
from tinygrad.uop.ops import UOp

from torch_tinygrad.trace import geometry
from torch_tinygrad.trace.decisions import decide
from torch_tinygrad.trace.nodes import Region, Storage

from ..kernels.threads import SMALL, is_stored
from ..kernels.updates import Update
from ..lower.complex import Complex, joined, split
from ..lower.registry import TO_TINY
from .blocks import ALIGNMENT, Places
from .in_place import Version, Versions, held
from .patches import Layouts, Patch, Patches, Reads, interval, moving_store
from .regions import Shift, apply, bytes_region, composed, covers, in_memory, retyped, scattered, strided

# A buffer with more patches than this is written whole; a value never keeps more apart than that.
MAX_STORES = 16
MAX_PATCHES = 1024
# Reads that compose patches, after which the next materialises the value: patches that were made of what such
# reads gave are taken apart again for each of them, twice as often every time.
MAX_COMPOSITIONS = 6
# Elements from which on one read that composes small patches is enough: each goes through all of them.
LARGE = 1 << 12
# Patches of at most this part of a buffer are stored before what reads all of it.
SMALL_PART = 4


@dataclass
class Flat:
    """The value of one storage at a point of the trace."""

    storage: Storage
    device: str
    shift: Callable[[int], Shift]  # how far regions that move are away from their offset
    space: Places  # where buffers lie in others
    in_place: bool = True  # whether patches may be stored before the trace ends
    value: Tensor | None = None  # what it holds; None while nothing was ever written
    patches: Patches = field(default_factory=Patches)  # written since
    layouts: Layouts = field(default_factory=Layouts)  # buffers that hold it too, in other orders
    parts: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # intervals of the value, as buffers
    reads: Reads = field(default_factory=Reads)
    written: bool = False
    compositions: int = 0  # reads that composed the patches since the value was last materialised
    was_materialised: bool = False  # whether it was materialised for reads since
    versions: Versions | None = None  # of the buffer it had before the trace
    was_whole: bool = False  # whether all of it was computed or copied, however large
    # What it holds as complex numbers, where it was last written as such: reading that again takes no pairs apart.
    numbers: Complex | None = None

    def count(self, dtype: DType) -> int:
        return self.storage.nbytes // dtype.itemsize

    def is_ragged(self, dtype: DType) -> bool:
        """Whether elements of this dtype leave bytes at the end, so that they are read and written as bytes."""
        return self.storage.nbytes % dtype.itemsize != 0

    @property
    def is_taken_in_parts(self) -> bool:
        """Whether nothing in the trace depends on how large it is: its regions are read and written where they are."""
        if self.was_whole or not self.storage.has_value:
            return False
        return self.versions is None or (self.value is not None and self.value.uop is self.versions.state)

    def load(self, dtype: DType) -> None:
        """Makes the buffer's contents the value, in the dtype of their first use."""
        if self.value is None and self.storage.has_value:
            self.versions = Versions(UOp.new_buffer(self.device, self.count(dtype), dtype), self.space.taken)
            self.value = Tensor(self.versions.buffer)

    def typed(self, dtype: DType) -> Tensor:
        """The whole value as elements of `dtype`."""
        self.load(dtype)
        if self.value is None:
            self.value = Tensor.zeros(self.count(dtype), dtype=dtype, buffer=False)
        return retyped(self.value, dtype, self.count(dtype))

    # ---- reading ----

    def read(self, region: Region) -> Tensor | Complex:
        if region.dtype.is_complex:
            return self._read_complex(region)
        if region.dtype is torch.bool:
            return self.read(in_memory(region)) != 0
        dtype = TO_TINY[region.dtype]
        if region.numel == 0:
            return Tensor.zeros(region.size, dtype=dtype, buffer=False)
        if self.is_ragged(dtype):
            return self.read(bytes_region(region)).bitcast(dtype).reshape(region.size)
        written, patched = self.patches.seen_through(region)
        if (part := self._part(region)) is not None:
            first, flat = part
            return strided(flat, region.at(offset=region.offset - first), self.shift)
        if patched and self._join():
            return self.read(region)
        updated = written >= 0 and self.patches[written].is_update
        if (patched or updated) and self._is_worth_storing():
            self.store_patches()
            return self._taken(region)
        is_small = patched and self._changes_little(self.patches.last())
        most = 1 if is_small and decide("large", self.count(dtype) >= LARGE) else MAX_COMPOSITIONS
        if patched and self.compositions < most and not self._is_next_step():
            self.compositions += 1
            return strided(self._patched(dtype), region, self.shift)
        if patched:
            self._materialise(is_small)
            self.compositions, self.was_materialised = 0, True
            return self._taken(region)
        return self.patches[written].value if written >= 0 else self._taken(region)

    def _taken(self, region: Region) -> Tensor:
        taken = strided(self.typed(TO_TINY[region.dtype]), region, self.shift)
        self.reads[taken.uop] = region
        return taken

    def stored(self, region: Region, wanted: int = 0) -> tuple[Tensor, int] | None:
        """A buffer that the region can be read from without a copy, and the element it starts with. A value that is not
        in one yet is put there, for all who read it, unless most of it is not wanted: neither for the region, nor among
        the `wanted` elements that others ask for with it."""
        if region.dtype.is_complex or region.numel == 0 or region.moves >= 0:
            return None
        region = in_memory(region)
        if self.patches and self._is_worth_storing():
            self.store_patches()
        if (part := self._stored_patch(region)) is not None:
            return part
        if self.patches and not self._join():
            return None
        value = self.typed(TO_TINY[region.dtype])
        if not is_stored(value):
            if value is not self.value or decide("minor part", 2 * max(region.numel, wanted) < value.shape[0]):
                return None
            if self.layouts.of(self.value):
                self.was_whole = True
                return self.layouts.keep(value, (value.shape, value.dtype), lambda: held(value, self.device)), 0
            self.was_whole = True
            value = self.value = held(value, self.device)
        return value, 0

    def arranged(self, region: Region, order: tuple[int, ...], copies: bool) -> Tensor | None:
        """A buffer in which the region, all of the storage, lies with its dimensions in this order, slowest first. A
        value that is not in a buffer yet is put there, for all who read it; one that is in another, or must end in
        another, is copied only if `copies`."""
        region = in_memory(region)
        dtype = TO_TINY[region.dtype]
        if self.patches or self.is_ragged(dtype) or not covers(self.count(dtype), region):
            return None
        key = (region.size, region.stride, region.dtype, order)
        if (buffer := self.layouts.of(self.value).get(key)) is not None:
            return buffer
        value = self.typed(dtype)
        is_kept = self.storage.live or is_stored(value) or value is not self.value or bool(self.layouts.of(self.value))
        if is_kept and not copies:
            return None
        buffer = held(strided(value, region, self.shift).permute(order), self.device)
        if is_kept:
            return self._laid_out(key, buffer)
        self.write_arranged(region, buffer, order)
        return buffer

    def _laid_out(self, key: tuple, buffer: Tensor) -> Tensor:
        """From here on the value lies in this buffer as well."""
        assert self.value is not None
        return self.layouts.keep(self.value, key, lambda: buffer)

    def _read_complex(self, region: Region) -> Complex:
        numbers, parts = self.numbers, in_memory(region)
        if numbers is None or numbers.dtype != TO_TINY[parts.dtype] or region.numel == 0:
            return split(self.read(parts))
        return numbers.map(lambda part: strided(part, region, self.shift))

    # ---- parts that are buffers ----

    def _stored_patch(self, region: Region) -> tuple[Tensor, int] | None:
        """The buffer of the one patch that the region lies in, and its first element. It is put there if it is not."""
        number = self.patches.holding(region)
        if number is None:
            return None
        patch = self.patches[number]
        if not is_stored(patch.value):
            patch = self.patches.hold(number, held(patch.value, self.device))
        return patch.value, patch.region.offset

    def _part(self, region: Region) -> tuple[int, Tensor] | None:
        """The patch or the part of the value's buffer that the region lies in, and its first element. Kernels that read
        parts of one size are the same kernel."""
        if self.patches:
            patch = None if region in self.patches.newest else self.patches.holding(region)
            return None if patch is None else (self.patches[patch].region.offset, self.patches[patch].value.flatten())
        value, (low, high) = self.value, interval(region)
        if value is None or value.dtype != TO_TINY[region.dtype] or region.moves >= 0:
            return None
        if (low, high) not in self.parts:
            is_part = high - low < value.shape[0] and high - low == region.numel and decide("part", high - low >= SMALL)
            is_aligned = low * value.dtype.itemsize % ALIGNMENT == 0
            state = self.space.stored_state(value.uop) if self.space.has_views and is_part and is_aligned else None
            if state is None:
                return None
            self.parts[low, high] = self.space.part(state, low, high - low)
        return low, self.parts[low, high]

    def _join(self) -> bool:
        """Lays the patches side by side, if they are all there is, and all but one are in buffers already."""
        blocks = None if self.storage.has_value else self.patches.blocks
        if not self.patches or blocks is None:
            return False
        dtype = TO_TINY[self.patches.dtype]
        if not blocks.tile(self.count(dtype)) or any(s * dtype.itemsize % ALIGNMENT for s in blocks.starts):
            return False
        values = [self.patches[number].value.flatten() for number in blocks.numbers]
        if self.is_ragged(dtype) or sum(not self.space.has_own_buffer(value) for value in values) > 1:
            return False
        whole, parts = self.space.joined(blocks.starts, values, self.count(dtype))
        self._replace(whole)
        self.parts = dict(zip(zip(blocks.starts, blocks.ends, strict=True), parts, strict=True))
        return True

    # ---- writing ----

    def _write_complex(self, region: Region, value: Complex) -> None:
        self.write(in_memory(region), joined(value))
        n = self.storage.nbytes // region.dtype.itemsize
        plan = geometry.write_plan(n, region.size, region.stride, region.offset)
        if plan is not None and covers(n, region):
            self.numbers = value.map(lambda part: apply(part, plan))

    def write(self, region: Region, value: Tensor | Complex) -> None:
        if region.numel == 0:
            return
        if isinstance(value, Complex):
            return self._write_complex(region, value)
        if region.dtype is torch.bool:
            return self.write(in_memory(region), value.cast(dtypes.uint8))
        self.numbers = None
        dtype = TO_TINY[region.dtype]
        if self.is_ragged(dtype):
            return self.write(bytes_region(region), value.reshape((*region.size, 1)).bitcast(dtypes.uint8))
        n = self.count(dtype)
        self.written = True
        plan = geometry.write_plan(n, region.size, region.stride, region.offset)
        if plan is not None and covers(n, region):
            self._replace(apply(value, plan))
            return
        self.load(dtype)
        if plan is None:
            self.merge_patches()
            self._replace(scattered(self.typed(dtype), region, value, self.shift))
            return
        too_many = len(self.patches) >= MAX_PATCHES and self.patches.blocks is None
        if too_many or (self.patches and self.patches.dtype != region.dtype):
            self.merge_patches()
        self.value = self.typed(dtype)
        self.patches.add(Patch(region, value, moving_store(region, value, self.shift) if region.moves >= 0 else None))

    def write_arranged(self, region: Region, buffer: Tensor, order: tuple[int, ...]) -> None:
        """The whole storage, from a buffer in which the region lies with its dimensions in this order."""
        buffer = buffer.reshape(tuple(region.size[d] for d in order))
        self.write(region, buffer.permute(tuple(order.index(d) for d in range(len(order)))))
        self._laid_out((region.size, region.stride, region.dtype, order), buffer)

    def _replace(self, value: Tensor) -> None:
        self.value, self.patches, self.parts, self.reads = value, Patches(), {}, Reads()

    def update(self, region: Region, made: Update) -> None:
        """A write that changes little of the region: if that is all of the storage, it can be made in the buffer."""
        value = made.value()
        if region.dtype is torch.bool:
            region, value = in_memory(region), value.cast(dtypes.uint8)
        dtype = TO_TINY[region.dtype]
        if self.is_ragged(dtype):
            return self.write(region, value)
        self.load(dtype)
        whole = covers(self.count(dtype), region) and geometry.is_contiguous(region.size, region.stride)
        if whole and self.is_patched_buffer(dtype) and not self.patches:
            self.written, self.numbers = True, None
            self.patches.add(Patch(region, value, lambda state, older: made.into(state.reshape(region.size), older)))
        else:
            self.write(region, value)

    def whole(self, dtype: DType) -> Tensor:
        """All of it as elements of `dtype`, with what was written in place."""
        self.merge_patches()
        return self.typed(dtype)

    def replace(self, value: Tensor) -> None:
        """A write of all of it, as a flat tensor."""
        self.written, self.numbers = True, None
        self._replace(value)

    def begin(self, dtype: DType) -> Version | None:
        """A version of the buffer to write into, if the buffer is all there is; `finish` says that it was written."""
        self.load(dtype)
        if self.in_place and self.in_place_patches():
            self.store_patches()
        return self.versions.begin() if self.in_place and not self.patches and self.is_patched_buffer(dtype) else None

    def finish(self, version: Version) -> None:
        self.versions.finish(version)
        self.replace(Tensor(self.versions.state))

    # ---- patches ----

    def is_patched_buffer(self, dtype: DType) -> bool:
        """Whether the value, but for the patches, is what lies in the buffer."""
        return (
            self.versions is not None
            and self.value is not None
            and self.value.uop is self.versions.state
            and self.versions.buffer.dtype == dtype
        )

    def _patched(self, dtype: DType) -> Tensor:
        """The whole value with the patches in place."""
        self.was_whole = True
        flat = self.typed(TO_TINY[self.patches.dtype])
        for patch in self.patches.last():
            flat = composed(flat, patch.region, patch.value, self.shift)
        return retyped(flat, dtype, self.count(dtype))

    def merge_patches(self) -> None:
        """From here on the storage is a whole new value."""
        if self.patches and not self._join():
            self._replace(self._patched(TO_TINY[self.patches.dtype]))

    def _changes_little(self, patches: list[Patch]) -> bool:
        changed = sum(1 if p.update is not None else p.region.numel for p in patches)
        return changed > 0 and decide("small part", changed * SMALL_PART <= self.value.shape[0])

    def _materialise(self, is_small: bool) -> None:
        """Stores the value with its patches; in the storage's own buffer, if what comes is likely small as well."""
        self.merge_patches()
        if self.storage.has_value or self.versions is not None or not self.in_place or not is_small:
            return self._replace(held(self.value, self.device))
        self.versions = Versions.holding(self.value.uop, self.space.taken)
        self._replace(Tensor(self.versions.state))

    def in_place_patches(self) -> list[Patch]:
        """What to store into the buffer it had, if that is all that changed."""
        if not self.patches or not self.is_patched_buffer(TO_TINY[self.patches.dtype]):
            return []
        last = self.patches.last()
        return last if len(last) <= MAX_STORES else []

    def _is_worth_storing(self) -> bool:
        """Whether to store the patches now, for what reads the buffer: composing would copy or recompute far more."""
        return self._changes_little(self.in_place_patches() if self.in_place else [])

    def settle_patches(self) -> None:
        """At the end of a trace: what changed is stored into the buffer, if that is all there is."""
        if self.in_place_patches() and not self._is_next_step():
            self.store_patches()
        self.merge_patches()

    def _is_next_step(self) -> bool:
        """Whether most of it is new and computed from what it holds around each place, as a step of a stencil is: then
        all of it is a new value, in one kernel and with no choice between old and new at each read."""
        if not self.patches:
            return False
        dtype, last = TO_TINY[self.patches.dtype], self.patches.last()
        if not decide("most of it", 2 * sum(p.region.numel for p in last) > self.count(dtype)):
            return False
        if not self.is_patched_buffer(dtype):
            return self.was_materialised
        return any(p.update is None and self._reads_overwritten(p) for p in last)

    def _reads_overwritten(self, patch: Patch) -> bool:
        """Whether a patch reads what storing it would already have overwritten."""
        before = strided(Tensor(self.versions.state), patch.region, self.shift)
        is_moving = not self.in_place or patch.region.moves >= 0
        apart = self.reads.apart_from(patch.region)
        return is_moving or not self.versions.depends_elementwise(patch.value.uop, before.uop, apart)

    def store_patches(self) -> None:
        """Stores the patches into the buffer: a new version of it, which is the value from here on."""
        assert self.versions is not None
        version = self.versions.begin()
        for patch in self.in_place_patches():
            region = patch.region
            updated = patch.update(Tensor(version.state), self.versions.names) if patch.update is not None else None
            if updated is not None:
                version.state = updated.uop.base.reshape(version.state.shape)
                continue
            value = held(patch.value, self.device) if self._reads_overwritten(patch) else patch.value
            version.state = version.state.after(strided(Tensor(version.state), region, self.shift).uop.store(value.uop))
        self.versions.finish(version)
        self._replace(Tensor(self.versions.state))
