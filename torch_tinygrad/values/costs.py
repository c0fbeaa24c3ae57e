"""What it costs to compute a value again, in every kernel that reads it, against storing it once."""

from __future__ import annotations

from tinygrad import Tensor
from tinygrad.uop.ops import Ops, UOp

from torch_tinygrad.trace.decisions import decide

from ..kernels.threads import SMALL

_SLOW = {Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.POW, Ops.THREEFRY}
# A store and a load cost about as much as one slow function, or as reading this many operands.
_SLOW_COST, _WORTH = 6, 6
_MOST = 1 << 20


class Costs:
    """Costs by value, each computed once."""

    def __init__(self) -> None:
        self.known: dict[UOp, int] = {}

    def of(self, value: UOp) -> int:
        """Operands read and slow functions computed for an element, counted once for every use."""
        for u in value.toposort(lambda u: u not in self.known and not _is_stored(u)):
            below = sum(1 if _is_stored(s) else self.known.get(s, 0) for s in u.src)
            self.known[u] = min(_MOST, below + (_SLOW_COST if u.op in _SLOW else 0))
        return 1 if _is_stored(value) else self.known[value]

    def is_stored_now(self, value: Tensor, is_shared: bool) -> bool:
        """Whether to store it before anybody reads it: `is_shared` says that several kernels would compute it."""
        return is_shared and self.of(value.uop) >= _WORTH and decide("store", value.numel() >= SMALL)


def _is_stored(u: UOp) -> bool:
    return u.op in (Ops.BUFFER, Ops.AFTER, Ops.PARAM)
