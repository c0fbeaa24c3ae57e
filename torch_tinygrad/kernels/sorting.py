"""The permutation that sorts rows, stably: by counting for short rows, by radix passes for long ones.

Values become unsigned integers of the same order, so that one algorithm sorts every dtype and PyTorch's rules (NaN is
the greatest, signed zeros are equal, equal elements keep their order either way round) are settled in one place."""

from __future__ import annotations

import math

from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType
from tinygrad.uop.ops import AxisType, KernelInfo, UOp

from torch_tinygrad.trace.decisions import decide

from .arrays import positions, zeros
from .counting import running_count
from .threads import in_parallel, lanes_of, stored, thread_ranges

DIGIT = 8
BINS = 1 << DIGIT
UNSIGNED: dict[int, DType] = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
INFINITY = {
    dtypes.float16: 0x7C00,
    dtypes.bfloat16: 0x7F80,
    dtypes.float32: 0x7F800000,
    dtypes.float64: 0x7FF0000000000000,
}


def sort_keys(x: Tensor, descending: bool) -> Tensor:
    """Unsigned integers in the order that PyTorch sorts `x` in."""
    if x.dtype == dtypes.bool:
        x = x.cast(dtypes.uint8)
    unsigned = UNSIGNED[x.dtype.itemsize]
    whole = (1 << (8 * x.dtype.itemsize)) - 1
    sign = 1 << (8 * x.dtype.itemsize - 1)

    def number(value: int) -> Tensor:
        return Tensor.full((), value, dtype=unsigned, buffer=False)

    key = x if x.dtype == unsigned else x.bitcast(unsigned)
    if dtypes.is_float(x.dtype):
        magnitude = key & number(whole - sign)
        negative = (key >= number(sign)) & (magnitude != number(0))
        key = negative.where(key ^ number(whole), magnitude | number(sign))
        key = (magnitude > number(INFINITY[x.dtype])).where(number(whole), key)
    elif x.dtype != unsigned:
        key = key ^ number(sign)
    return key ^ number(whole) if descending else key


def sort_order(keys: Tensor, count: int | None = None, bits: int | None = None) -> Tensor:
    """The positions, in int32, of the `count` smallest (all, if not said) of each row of 2-dim unsigned `keys`, of
    which only the low `bits` are used (all, if not said)."""
    rows, size = keys.shape
    count = size if count is None else count
    if 0 in (rows, count):
        return zeros((rows, count), dtypes.int32)
    if size == 1:
        return zeros((rows, 1), dtypes.int32)
    is_short = size <= 128 or (in_parallel(keys) and size <= 2048 and rows * size * size <= 2**28)
    if decide("sort by counting", is_short):
        return _order_by_counting(keys, count)
    return _order_by_radix(keys, bits or 8 * keys.dtype.itemsize).shrink((None, (0, count)))


def _order_by_counting(keys: Tensor, count: int) -> Tensor:
    """An element's rank is how many come before it."""
    keys = keys.contiguous()
    size = keys.shape[1]
    mine, other = keys.unsqueeze(2), keys.unsqueeze(1)
    earlier = positions(size, 2, 3) < positions(size, 1, 3)
    rank = ((other < mine) | ((other == mine) & earlier)).sum(2, dtype=dtypes.int32).contiguous()
    here = rank.unsqueeze(1) == positions(count, 1, 3)
    return here.where(positions(size, 2, 3), 0).sum(2, dtype=dtypes.int32)


def _order_by_radix(keys: Tensor, used: int) -> Tensor:
    """One pass per digit, least significant first. A pass moves keys and positions to where the running count of their
    digit says, and rotates the keys, so that every pass is the same three kernels."""
    rows, size = keys.shape
    pieces = lanes_of(math.ceil(size / 64)) if in_parallel(keys) else 1
    length = math.ceil(size / pieces)
    bits = 8 * keys.dtype.itemsize
    if pieces * length > size:
        # What is added to fill the last piece sorts last, and is never among the positions asked for.
        keys = keys.pad((None, (0, pieces * length - size)), value=(1 << bits) - 1)
        size = pieces * length
    at, keys = stored(positions(size, 1, 2).expand(rows, size)), stored(keys)
    for _ in range(math.ceil(used / DIGIT)):
        counts = Tensor.empty(rows, BINS, pieces, dtype=dtypes.int32, device=keys.device)
        counts = Tensor.custom_kernel(counts, keys, fxn=_count_digits(rows, pieces, length))[0]
        ends = stored(running_count(counts.reshape(rows, BINS * pieces)))
        moved = [Tensor.empty(rows, size, dtype=t.dtype, device=t.device) for t in (keys, at)]
        move = _move_by_digit(rows, pieces, length, bits)
        keys, at, *_ = Tensor.custom_kernel(*moved, ends, keys, at, fxn=move)
    return at


def _digit(key: UOp) -> UOp:
    return (key.cast(dtypes.int32) & (BINS - 1)).cast(dtypes.weakint)


def _count_digits(rows: int, pieces: int, length: int):
    def kernel(counts: UOp, keys: UOp) -> UOp:
        counts, keys = counts.flatten(), keys.flatten()
        row, (piece, shares) = UOp.range(rows, 0), thread_ranges(pieces, 1, pieces > 1)
        bin_, step = UOp.range(BINS, 3, AxisType.LOOP), UOp.range(length, 4, AxisType.LOOP)
        cleared = counts[(row * BINS + bin_) * pieces + piece].store(0).end(bin_)
        counts = counts.after(cleared)
        digit = _digit(keys[(row * pieces + piece) * length + step].load())
        place = (row * BINS + digit) * pieces + piece
        write = counts[place].store(counts.after(step)[place].load() + 1)
        return write.end(step).end(row, *shares).sink(arg=KernelInfo(name="count_digits", opts_to_apply=()))

    return kernel


def _move_by_digit(rows: int, pieces: int, length: int, bits: int):
    def kernel(moved_keys: UOp, moved_at: UOp, ends: UOp, keys: UOp, at: UOp) -> UOp:
        moved_keys, moved_at, ends, keys, at = (b.flatten() for b in (moved_keys, moved_at, ends, keys, at))
        row, (piece, shares) = UOp.range(rows, 0), thread_ranges(pieces, 1, pieces > 1)
        step = UOp.range(length, 3, AxisType.LOOP)
        source = (row * pieces + piece) * length + (length - 1 - step)
        key = keys[source].load()
        digit = _digit(key)
        place = (row * BINS + digit) * pieces + piece
        left = ends.after(step)[place].load() - 1
        target = left.maximum(0).minimum(pieces * length - 1).cast(dtypes.weakint) + row * pieces * length
        rotated = key if bits == DIGIT else (key >> DIGIT) | (key << (bits - DIGIT))
        writes = UOp.group(
            moved_keys[target].store(rotated), moved_at[target].store(at[source].load()), ends[place].store(left)
        )
        return writes.end(step).end(row, *shares).sink(arg=KernelInfo(name="move_by_digit", opts_to_apply=()))

    return kernel
