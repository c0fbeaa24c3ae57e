"""Scans of rows, element after element: as many steps as a row has elements, whatever that number is."""

from __future__ import annotations

from collections.abc import Callable

from tinygrad import Tensor
from tinygrad.dtype import AddrSpace, DType
from tinygrad.uop.ops import AxisType, KernelInfo, UOp

from .threads import call, in_parallel, thread_ranges


def scanned_in_turn(x: Tensor, dtype: DType, combine: Callable[[UOp, UOp], UOp], start: float, name: str) -> Tensor:
    """The inclusive scan of each row of a 2-dim tensor, a thread a row."""
    rows, size = x.shape
    parallel = in_parallel(x)

    def kernel(out: UOp, x: UOp) -> UOp:
        (row, shares), at = thread_ranges(rows, 0, parallel), UOp.range(size, 2, AxisType.LOOP)
        total = UOp.placeholder((1,), dtype, 0, AddrSpace.REG)
        total = total.after(*shares)[0].set(UOp.const(start, dtype))
        place = row * size + at
        now = combine(total.after(at)[0].load(), x.flatten()[place].load().cast(dtype))
        writes = UOp.group(total[0].store(now), out.flatten()[place].store(now))
        return writes.end(at).end(*shares).sink(arg=KernelInfo(name=name, opts_to_apply=()))

    return call(kernel, Tensor.empty(rows, size, dtype=dtype, device=x.device), x)
