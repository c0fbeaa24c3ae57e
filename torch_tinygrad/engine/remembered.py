"""What tinygrad remembers of kernels it has compiled would grow with every new one for as long as the process lives: it
is forgotten when there is much of it. Programs keep what they run themselves; a kernel that comes again is then
compiled anew, or found on disk."""

from __future__ import annotations

from tinygrad.codegen import to_program_cache
from tinygrad.codegen.late.coalesce import _drop_valid_stmts
from tinygrad.schedule import schedule_cache
from tinygrad.schedule.indexing import _apply_reshape, apply_movement_op
from tinygrad.uop.divandmod import fold_divmod_general

MOST = 2048  # kernels: some tens of megabytes

_BY_KERNEL = (to_program_cache, schedule_cache)
_BY_EXPRESSION = (_apply_reshape, apply_movement_op, fold_divmod_general, _drop_valid_stmts)


def trim() -> None:
    """Forgets all of it where it is too much. Not while something is being compiled."""
    if sum(map(len, _BY_KERNEL)) <= MOST:
        return
    for kernels in _BY_KERNEL:
        kernels.clear()
    for function in _BY_EXPRESSION:
        function.cache_clear()
