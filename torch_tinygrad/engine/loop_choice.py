"""How kernels loop, in the place of tinygrad's own choice.

On the host, tinygrad cuts its loops into steps of three or four elements, whose arithmetic clang rarely joins into
vectors again; a plain loop it vectorises to the processor's full width (exponentials: 0.35 ns an element instead of
3.2). So loops stay whole, shared out over threads, but for two cases in which memory decides: sums over rows take a
vector of columns at a time (sums of 2,048 rows: 0.4 ms instead of 2.7), and so does what writes in another order than
it reads. Sums along rows and products of matrices are left to tinygrad. Devices with groups of threads: `_in_groups`.
"""

from __future__ import annotations

from math import prod

from tinygrad.codegen.opt import KernelOptError, Opt, OptOps, heuristic
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import AxisType, GroupOp, Ops, UOp, resolve

from torch_tinygrad.trace.decisions import Diverged, decide, is_one_of_many, most_cuts, note, wants_plain_loops

# Elements that are worth a thread (AdamW on tensors of 100,000: 0.3 of eager's time, on one thread 0.5), and elements
# that a line of the cache holds.
_ELEMENTS_A_THREAD = 16 << 10
_LINE = 16
# Elements of a sum that is written out where no vector of results fits (nine taps of 28 x 28: 0.98 ms instead of 3.1).
_WRITTEN_OUT = 32
# On devices with groups of threads: elements a thread, and threads a group.
_VECTOR, _GROUP = 4, 256
# Elements from which on a loop that does not divide into groups is made longer until it does.
_LONG = 1 << 12
# For sums across rows there: columns side by side, and the most threads that share the rows of one.
_COLUMNS, _SHARES = 32, 16
# And for sums along rows: how many are many, and the threads that each has then, as the smallest groups have.
_MANY, _FEW = 2048, 64
# Operations for one element, from which on arithmetic takes the time, not memory.
_EXPENSIVE = 128

_plain = heuristic.hand_coded_optimizations


def optimized(kernel: Scheduler) -> Scheduler:
    """Where sizes vary, the loops of all kernels of a family are cut as the first one's are."""
    note("elements", prod(kernel.full_shape))
    if not is_one_of_many():
        return _chosen(kernel)
    first = kernel.copy()
    cuts = decide("loops", tuple((_shared_out(first) if wants_plain_loops() else _chosen(first)).applied_opts))
    for cut in cuts[: most_cuts()]:
        try:
            kernel.apply_opt(cut)
        except KernelOptError as error:
            raise Diverged(f"loops that cannot be cut alike: {error}") from None
    return kernel


def _chosen(kernel: Scheduler) -> Scheduler:
    if kernel.ren.has_local:
        if kernel.ren.shared_max and _operations(kernel) >= _EXPENSIVE:
            return _one_by_one(kernel)
        return kernel if kernel.ren.shared_max and _in_groups(kernel) else _plain(kernel)
    outputs = kernel.ranges_of(AxisType.WEAK)
    contiguous = {_contiguous_range(access.src[1].get_idx()): access for access in kernel.bufs}
    contiguous.pop(None, None)
    if kernel.reduceop is not None:
        # What the results share, such as the means of the rows that are summed up, is small beside the rest.
        moving = [r for r, access in contiguous.items() if all(o in access.src[1].get_idx().ranges for o in outputs)]
        if _reuses_operands(kernel) or not moving or not all(r in outputs for r in moving):
            return _plain(kernel)
        elements = prod(kernel.full_shape[axis] for axis in kernel.axes_of(AxisType.REDUCE))
        if not _widen(kernel, moving[0]) and resolve(elements <= _WRITTEN_OUT, False):
            _unroll(kernel)
    elif len(contiguous) == 2:
        targets = _stored_to(kernel)
        stored = {r for r, access in contiguous.items() if access in targets}
        for r in contiguous.keys() - stored if stored else ():
            _widen(kernel, r)
    return _shared_out(kernel)


def _in_groups(kernel: Scheduler) -> bool:
    """On devices whose threads work in groups: whole groups for what is computed element by element, each thread on a
    vector, a group for each sum along rows, side by side in memory, and one for neighbouring sums across rows. Where
    that does not divide, and for all else, tinygrad chooses."""
    if kernel.reduceop is None:
        return _elements(kernel)
    sums = kernel.ranges_of(AxisType.REDUCE)
    if len(sums) != 1 or len(kernel.reduceops) != 1 or _reuses_operands(kernel) or sums[0].src[0].op is not Ops.CONST:
        return False
    indices = [access.src[1].get_idx() for access in kernel.bufs]
    side_by_side = {_contiguous_range(index) for index in indices if sums[0] in index.ranges}
    if len(side_by_side) != 1 or (r := side_by_side.pop()) is None:
        return False
    return _along_rows(kernel, r) if r is sums[0] else _across_rows(kernel, sums[0], r)


def _operations(kernel: Scheduler) -> int:
    return sum(u.op in GroupOp.ALU and u.dtype != dtypes.weakint for u in kernel.ast.toposort())


def _one_by_one(kernel: Scheduler) -> Scheduler:
    """What takes many operations an element, such as powers in two parts, is written once: vectors save memory's time,
    which is not what such kernels take, and a sum that tinygrad writes out, of up to 32, takes it and the driver so
    many times as long to compile (a norm of order 1.5 of twenty numbers on WebGPU: source code of 75 KB a kernel)."""
    results = kernel.upcastable_dims
    lengths = {axis: n for axis in results if isinstance(n := kernel.full_shape[axis], int)}
    sums = kernel.axes_of(AxisType.REDUCE)
    if len(sums) == 1 and isinstance(length := kernel.full_shape[sums[0]], int):
        shares = _largest_divisor(length, _GROUP)
        if shares >= _COLUMNS and resolve(prod(kernel.full_shape[axis] for axis in results) < _MANY, False):
            kernel.apply_opt(Opt(OptOps.GROUP, 0, shares))
            return kernel
    if lengths:
        axis = max(lengths, key=lambda a: _group_of(lengths[a]))
        if (threads := _group_of(lengths[axis])) > 1:
            kernel.apply_opt(Opt(OptOps.LOCAL, axis, threads))
    return kernel


def _elements(kernel: Scheduler) -> bool:
    targets = _stored_to(kernel)
    indices = [access.src[1].get_idx() for access in sorted(kernel.bufs, key=lambda access: access not in targets)]
    r = _contiguous_range(indices[0])
    if r is None or r not in kernel.rngs:
        return False
    length = kernel.full_shape[axis := kernel.rngs.index(r)]
    if not isinstance(length, int):
        return False
    vector = _VECTOR if length % _VECTOR == 0 else 1
    threads = _group_of(length // vector)
    if threads < _FEW:
        return _lengthened(kernel, axis)
    if any(r in index.ranges and _contiguous_range(index) is not r for index in indices):
        return False
    if vector > 1:
        kernel.apply_opt(Opt(OptOps.UPCAST, axis, vector))
    kernel.apply_opt(Opt(OptOps.LOCAL, axis, threads))
    return True


def _group_of(count: int) -> int:
    """How many threads a group has, for so many in all: whole rows of threads that work in step, where that divides.
    Widths of networks often do not divide by 1,024: for one of 768 tinygrad lets each thread compute three neighbours
    in turn, which takes four to eight times as long."""
    full = next((n for n in range(_GROUP, 0, -_COLUMNS) if count % n == 0), 0)
    return full or _largest_divisor(count, _GROUP)


def _lengthened(kernel: Scheduler, axis: int) -> bool:
    """A long loop of a length that hardly divides, as of what a mask has selected: tinygrad gives each element a group
    of its own, most of whose threads are not there (8,391,559 elements picked on an H200: 5 ms). The threads beyond its
    end do nothing."""
    if kernel.full_shape[axis] < _LONG:
        return False
    kernel.apply_opt(Opt(OptOps.PADTO, axis, _GROUP))
    kernel.apply_opt(Opt(OptOps.LOCAL, axis, _GROUP))
    return True


def _along_rows(kernel: Scheduler, r: UOp) -> bool:
    """Neighbouring threads read neighbouring vectors; tinygrad gives each a stretch of the row. Adding up what the
    threads have takes as long as there are threads, so that many short rows get fewer."""
    length = r.vmax + 1
    vector = _VECTOR if length % _VECTOR == 0 else 1
    is_long = length % (_VECTOR * _GROUP) == 0 or prod(kernel.full_shape) // length < _MANY
    threads = _largest_divisor(length // vector, _GROUP if is_long else _FEW)
    if threads < _COLUMNS:
        return False
    if vector > 1:
        kernel.apply_opt(Opt(OptOps.UNROLL, 0, vector))
    kernel.apply_opt(Opt(OptOps.GROUP, 0, threads))
    return True


def _across_rows(kernel: Scheduler, r: UOp, column: UOp) -> bool:
    """As of an image with channels last: tinygrad gives a result to a thread, four to sixteen even, and most of the
    device sleeps (batch norm's sums of 32 x 56 x 56 x 256: 512 threads). Here a group has neighbouring columns, so that
    it reads whole lines of memory, and its threads share their rows."""
    threads = (kernel.ren.local_max or (0,))[0]  # of a group; more than 1,024 where tinygrad does not know
    most = _SHARES if _COLUMNS * _SHARES <= threads <= 1024 else _GROUP // _COLUMNS
    shares = _largest_divisor(r.vmax + 1, most)
    if column not in kernel.rngs or kernel.full_shape[axis := kernel.rngs.index(column)] % _COLUMNS or shares < 4:
        return False
    kernel.apply_opt(Opt(OptOps.LOCAL, axis, _COLUMNS))
    kernel.apply_opt(Opt(OptOps.GROUPTOP, 0, shares))
    return True


def _largest_divisor(number: int, most: int) -> int:
    return next(n for n in range(min(most, number), 0, -1) if number % n == 0)


def _contiguous_range(index: UOp) -> UOp | None:
    """The loop that moves an access by one element."""
    return next((term for term in index.split_uop(Ops.ADD) if term.op is Ops.RANGE), None)


def _stored_to(kernel: Scheduler) -> set[UOp]:
    """The accesses that the kernel writes through."""
    stores = (u for u in kernel.ast.toposort() if u.op is Ops.STORE)
    return {access for u in stores for access in (u.src[0], *u.src[0].src)}


def _reuses_operands(kernel: Scheduler) -> bool:
    """Whether all operands of a sum are read again for other results, as in products of matrices."""
    loops = kernel.ranges_of(AxisType.REDUCE, AxisType.WEAK, AxisType.GLOBAL)
    used = [access.src[1].get_idx().ranges for access in kernel.bufs]
    return not any(all(r in ranges for r in loops) for ranges in used)


def _widen(kernel: Scheduler, r: UOp) -> bool:
    axis = kernel.rngs.index(r)
    can = axis in kernel.upcastable_dims and kernel.full_shape[axis] % _LINE == 0
    if can:
        kernel.apply_opt(Opt(OptOps.UPCAST, axis, _LINE))
    return can


def _unroll(kernel: Scheduler) -> None:
    """Writes out the sum: what is left is a plain loop over its results."""
    while kernel.unrollable_dims:
        kernel.apply_opt(Opt(OptOps.UNROLL, 0, 0))


def _shared_out(kernel: Scheduler) -> Scheduler:
    """Threads for the outermost loop that divides."""
    most = kernel.ren.global_max[0] if kernel.ren.has_threads and kernel.ren.global_max else 1
    elements = prod(kernel.full_shape)
    for threads in range(most, 1, -1):
        if resolve(elements < threads * _ELEMENTS_A_THREAD):
            continue
        for axis in kernel.axes_of(AxisType.WEAK):
            if kernel.full_shape[axis] % threads == 0:
                try:
                    kernel.apply_opt(Opt(OptOps.THREAD, axis, threads))
                    return kernel
                except KernelOptError:
                    break
    return kernel


def apply() -> None:
    heuristic.hand_coded_optimizations = optimized
