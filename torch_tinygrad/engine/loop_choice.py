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
from tinygrad.uop.ops import AxisType, Ops, UOp, resolve

# Elements that are worth a thread (AdamW on tensors of 100,000: 0.3 of eager's time, on one thread 0.5), and elements
# that a line of the cache holds.
_ELEMENTS_A_THREAD = 16 << 10
_LINE = 16
# On devices with groups of threads: elements a thread, and threads a group.
_VECTOR, _GROUP = 4, 256

_plain = heuristic.hand_coded_optimizations


def optimized(kernel: Scheduler) -> Scheduler:
    if kernel.ren.has_local:
        return kernel if kernel.ren.shared_max and _in_groups(kernel) else _plain(kernel)
    outputs = kernel.ranges_of(AxisType.WEAK)
    contiguous = {_contiguous_range(access.src[1].get_idx()): access for access in kernel.bufs}
    contiguous.pop(None, None)
    if kernel.reduceop is not None:
        # What the results share, such as the means of the rows that are summed up, is small beside the rest.
        moving = [r for r, access in contiguous.items() if all(o in access.src[1].get_idx().ranges for o in outputs)]
        if _reuses_operands(kernel) or not moving or not all(r in outputs for r in moving):
            return _plain(kernel)
        _widen(kernel, moving[0])
    elif len(contiguous) == 2:
        targets = _stored_to(kernel)
        stored = {r for r, access in contiguous.items() if access in targets}
        for r in contiguous.keys() - stored if stored else ():
            _widen(kernel, r)
    _share_out(kernel)
    return kernel


def _in_groups(kernel: Scheduler) -> bool:
    """On devices whose threads work in groups: whole groups for what is computed element by element, each thread on a
    vector, and a group for each sum along rows, side by side in memory. Everything else is left to tinygrad."""
    sums = kernel.ranges_of(AxisType.REDUCE)
    accesses = kernel.bufs
    if kernel.reduceop is None:
        targets = _stored_to(kernel)
        accesses = sorted(accesses, key=lambda access: access not in targets)
    elif len(sums) != 1 or len(kernel.reduceops) != 1 or _reuses_operands(kernel):
        return False
    indices = [access.src[1].get_idx() for access in accesses]
    r = sums[0] if sums else _contiguous_range(indices[0])
    if r is None or r not in kernel.rngs or kernel.full_shape[axis := kernel.rngs.index(r)] % (_VECTOR * _GROUP):
        return False
    if any(r in index.ranges and _contiguous_range(index) is not r for index in indices):
        return False
    if sums:
        kernel.apply_opt(Opt(OptOps.UNROLL, 0, _VECTOR))
        kernel.apply_opt(Opt(OptOps.GROUP, 0, _GROUP))
    else:
        kernel.apply_opt(Opt(OptOps.UPCAST, axis, _VECTOR))
        kernel.apply_opt(Opt(OptOps.LOCAL, axis, _GROUP))
    return True


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


def _widen(kernel: Scheduler, r: UOp) -> None:
    axis = kernel.rngs.index(r)
    if axis in kernel.upcastable_dims and kernel.full_shape[axis] % _LINE == 0:
        kernel.apply_opt(Opt(OptOps.UPCAST, axis, _LINE))


def _share_out(kernel: Scheduler) -> None:
    """Threads for the outermost loop that divides."""
    most = kernel.ren.global_max[0] if kernel.ren.has_threads and kernel.ren.global_max else 1
    for threads in range(most, 1, -1):
        if resolve(prod(kernel.full_shape) < threads * _ELEMENTS_A_THREAD):
            continue
        for axis in kernel.axes_of(AxisType.WEAK):
            if kernel.full_shape[axis] % threads == 0:
                try:
                    kernel.apply_opt(Opt(OptOps.THREAD, axis, threads))
                    return
                except KernelOptError:
                    break


def apply() -> None:
    heuristic.hand_coded_optimizations = optimized
