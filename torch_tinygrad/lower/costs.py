"""What it costs to compute a value again, in every kernel that reads it, against storing it once."""

from __future__ import annotations

from tinygrad import Tensor
from tinygrad.uop.ops import Ops, UOp

from .threads import SMALL

_SLOW = {Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.POW, Ops.THREEFRY}
# A store and a load cost about as much as one slow function, or as reading this many operands.
_SLOW_COST, _WORTH = 6, 6
_MOST = 1 << 20
_DEEP = 64


class Costs:
    """Costs by value, each computed once."""

    def __init__(self) -> None:
        self.known: dict[UOp, int] = {}
        self.depths: dict[UOp, int] = {}

    def of(self, value: UOp) -> int:
        """Operands read and slow functions computed for an element, counted once for every use."""
        for u in value.toposort(lambda u: u not in self.known and not _is_stored(u)):
            below = sum(1 if _is_stored(s) else self.known.get(s, 0) for s in u.src)
            self.known[u] = min(_MOST, below + (_SLOW_COST if u.op in _SLOW else 0))
        return 1 if _is_stored(value) else self.known[value]

    def is_deep(self, value: Tensor) -> bool:
        """Whether very many operations lie between this value and what is stored."""
        for u in value.uop.toposort(lambda u: u not in self.depths and not _is_stored(u)):
            below = (self.depths.get(s, 0) for s in u.src if not _is_stored(s))
            self.depths[u] = 1 + max(below, default=0)
        return self.depths.get(value.uop, 0) >= _DEEP

    def is_worth_storing(self, value: Tensor) -> bool:
        return value.numel() >= SMALL and self.of(value.uop) >= _WORTH


def _is_stored(u: UOp) -> bool:
    return u.op in (Ops.BUFFER, Ops.AFTER, Ops.PARAM)
