"""Which kernels of a program need not wait for those before them: they run at the same time, on as many cores as are
free. What decides is the memory that they read and write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tinygrad.uop.ops import ProgramInfo

from .layout import INPUT, TAKEN, Operand, Slot

# Kernels at most that run at the same time: each is compared with what those before it use.
MOST = 256


class Independence:
    """Follows a program's kernels, in their order. Temporaries lie in the inputs that were `taken`."""

    def __init__(self, taken: Sequence[tuple[int, int]] = ()) -> None:
        self.taken = taken
        self.restart()

    def restart(self) -> None:
        """What comes next waits for everything before it."""
        self.kernels = 0
        self.read: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.written: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def add(self, info: ProgramInfo, operands: list[Operand]) -> bool:
        """Whether the kernel may run at the same time as those since the last one that had to wait."""
        writes = [self._memory(operands[i]) for i in info.outs]
        reads = [self._memory(operands[i]) for i in info.globals if i not in info.outs]
        waits = _meet(self.written, reads + writes) or _meet(self.read, writes) or self.kernels == MOST
        if waits:
            self.restart()
        self.kernels += 1
        for known, added in ((self.read, reads), (self.written, writes)):
            for (kind, number, offset), nbytes in added:
                known.setdefault((kind, number), []).append((offset, offset + nbytes))
        return not waits and self.kernels > 1

    def _memory(self, operand: Operand) -> Operand:
        (kind, number, offset), nbytes = operand
        return Operand(Slot(INPUT, self.taken[number][0], offset), nbytes) if kind == TAKEN else operand


def _meet(known: dict[tuple[int, int], list[tuple[int, int]]], operands: Iterable[Operand]) -> bool:
    return any(
        start < offset + nbytes and offset < end
        for (kind, number, offset), nbytes in operands
        for start, end in known.get((kind, number), ())
    )
