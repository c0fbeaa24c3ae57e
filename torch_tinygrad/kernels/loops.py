"""Kernels written as loops: statements of one kernel in program order, for algorithms whose steps depend on each other.

A kernel works on many independent problems, one group of threads each. Where the device has groups, their threads
share out the innermost loops and wait for each other where the algorithm says `sync`; elsewhere they are plain loops.
Problems of one element have one thread each.
Loops have constant bounds (tinygrad ends a loop together with what its bound depends on): `when` leaves steps out."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from tinygrad import Tensor, dtypes
from tinygrad.dtype import AddrSpace, DType
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp

from .threads import LANES, fresh, in_parallel, stored, thread_ranges

# What statements compute with, and the buffers they read and write.
Value: TypeAlias = UOp

# The most threads that share one problem.
MOST_LANES = 256


class Loops:
    """The statements of a kernel so far. What is read is what the statements before have left."""

    def __init__(self, problems: int, lanes: int, parallel: bool):
        self.lanes = lanes
        self.axes = 0
        self.registers = 0
        self.conditions: list[UOp] = []
        self.lane: UOp | None = None
        if lanes > 1:
            self.problem, self.lane = self._range(problems, AxisType.GLOBAL), self._range(lanes, AxisType.LOCAL)
            self.outer = [r for r in (self.problem, self.lane) if r.op is Ops.RANGE]
        elif problems == 1:
            self.problem, self.outer = UOp.const(0), []
        else:
            self.problem, self.outer = thread_ranges(problems, 0, parallel)
            self.axes = 2
        self.done: tuple[UOp, ...] = tuple(self.outer)

    def _range(self, size: int, kind: AxisType = AxisType.LOOP) -> UOp:
        if size == 1:
            return UOp.const(0)
        self.axes += 1
        return UOp.range(size, self.axes - 1, kind)

    def _place(self, buffer: UOp, at: UOp | int) -> UOp:
        place = UOp.const(at) if isinstance(at, int) else at
        for condition in self.conditions:
            place = place.valid(condition)
        return buffer.after(*self.done)[place]

    def load(self, buffer: UOp, at: UOp | int) -> UOp:
        return self._place(buffer, at).load()

    def value(self, variable: UOp) -> UOp:
        return variable.after(*self.done)[UOp.const(0)].load()

    def store(self, *places: tuple[UOp, UOp | int, UOp | float]) -> None:
        """Stores (buffer, place, value) at once: all values are read before any is written."""
        if all(c.vmax for c in self.conditions):
            self.done += tuple(self._place(buffer, at).store(value) for buffer, at, value in places)

    def variable(self, value: UOp | float, dtype: DType) -> UOp:
        """A place of every thread's own."""
        register = UOp.placeholder((1,), dtype, self.registers, AddrSpace.REG)
        self.registers += 1
        self.set(register, value)
        return register

    def set(self, variable: UOp, value: UOp | float) -> None:
        """Whatever the conditions are."""
        self.done += (variable.after(*self.done)[UOp.const(0)].store(value),)

    @contextmanager
    def loop(self, size: int) -> Iterator[UOp]:
        """The statements inside, in turn for 0, 1, ... size-1."""
        at = self._range(size)
        before = self.done
        if at.op is not Ops.RANGE:
            yield at
            return
        self.done += (at,)
        yield at
        inside = self.done[len(before) + 1 :]
        self.done = (*before, together(inside).end(at)) if inside and size else before

    @contextmanager
    def repeat(self, condition: Callable[[], UOp]) -> Iterator[None]:
        """The statements inside, once and again as long as the condition holds after them."""
        turn = UOp.loop(self.axes)
        self.axes += 1
        before = self.done
        self.done += (turn,)
        yield
        self.done = (*before, together(self.done[len(before) + 1 :]).end(turn, condition()))

    @contextmanager
    def share(self, size: int) -> Iterator[UOp]:
        """The statements inside for 0, 1, ... size-1 in any order, by all threads of the group."""
        if self.lane is None:
            with self.loop(size) as at:
                yield at
            return
        with self.loop(math.ceil(size / self.lanes)) as part:
            at = part * self.lanes + self.lane
            with self.when(at < size):
                yield at

    def reduce(self, size: int, element: Callable[[UOp], UOp], combine: Callable[[UOp, UOp], UOp], start: UOp) -> UOp:
        """element(0), element(1), ... element(size-1), which may be read in any order, combined by the threads of the
        group; all of them have the result."""
        mine = self.variable(start, start.dtype)
        if self.lane is None:
            with self.loop(size) as at:
                self.set(mine, combine(self.value(mine), element(at)))
            return self.value(mine)
        with self.loop(math.ceil(size / self.lanes)) as part:
            at = part * self.lanes + self.lane
            with self.when(at < size):
                value = element(at)
            self.set(mine, combine(self.value(mine), (at < size).where(value, start) if size % self.lanes else value))
        # In two steps: some threads combine a few each, then all combine those.
        few = math.isqrt(self.lanes)
        while self.lanes % few:
            few -= 1
        all_of_them, some = self._shared(self.lanes, start.dtype), self._shared(few, start.dtype)
        self.store((all_of_them, self.lane, self.value(mine)))
        self.sync()
        each = self.lanes // few
        with self.when(self.lane < few):
            part = functools.reduce(combine, [self.load(all_of_them, self.lane * each + j) for j in range(each)])
            self.store((some, self.lane, part))
        self.sync()
        self.set(mine, functools.reduce(combine, [self.load(some, j) for j in range(few)]))
        return self.value(mine)

    def _shared(self, size: int, dtype: DType) -> UOp:
        """Memory of the group's."""
        self.registers += 1
        return UOp.placeholder((size,), dtype, self.registers - 1, AddrSpace.LOCAL)

    @contextmanager
    def share_grid(self, rows: int, columns: int) -> Iterator[tuple[UOp, UOp]]:
        """The statements inside for every row and column, in any order, by all threads of the group."""
        if self.lane is None:
            with self.loop(rows) as row, self.loop(columns) as column:
                yield row, column
            return
        with self.share(rows * columns) as at:
            yield at // columns, at % columns

    @contextmanager
    def when(self, condition: UOp) -> Iterator[None]:
        """The statements inside where a condition on loops holds: elsewhere loads are 0 and stores are left out. What
        was loaded cannot decide (tinygrad rewrites a condition together with all that it depends on)."""
        self.conditions.append(condition.simplify())
        yield
        self.conditions.pop()

    def sync(self) -> None:
        """The threads of a group wait for each other."""
        if self.lane is not None:
            self.done += (UOp(Ops.BARRIER, src=self.done),)

    def sink(self, name: str) -> UOp:
        statements = together(self.done[len(self.outer) :])
        return statements.end(*self.outer).sink(arg=KernelInfo(name=name, opts_to_apply=()))


def together(statements: tuple[UOp, ...]) -> UOp:
    """All statements as one, for the end of a loop. A group cannot have barriers in it, but a barrier comes last."""
    if statements[-1].op is Ops.BARRIER:
        return statements[-1]
    if any(s.op is Ops.BARRIER for s in statements):
        return UOp(Ops.BARRIER, src=statements)
    return UOp.group(*statements)


def run(name: str, body: Callable[..., None], problems: int, width: int, outs: list[Tensor], *inputs: Tensor) -> list:
    """What copies of `outs` are after one kernel: `body(loops, *outs, *inputs)` writes its statements, on flat buffers.
    `width` is how many threads could share a problem."""
    # Flat from the start: in an index that is reshaped tinygrad drops conditions on loops the place does not depend on.
    results = run_into(name, body, problems, width, [fresh(t.reshape(t.numel())) for t in outs], *inputs)
    return [result.reshape(out.shape) for result, out in zip(results, outs, strict=True)]


def run_into(
    name: str,
    body: Callable[..., None],
    problems: int,
    width: int,
    outs: list[Tensor],
    *inputs: Tensor,
    most_lanes: int = MOST_LANES,
    overwritten: Collection[UOp] = (),
) -> list[Tensor]:
    """The same with `outs` themselves: flat buffers that nothing else reads, but under the names in `overwritten`."""
    parallel = in_parallel(outs[0])
    lanes = min(most_lanes, math.ceil(width / LANES) * LANES) if parallel and width > 1 else 1

    def kernel(*buffers: UOp) -> UOp:
        loops = Loops(problems, lanes, parallel)
        body(loops, *(b.flatten() for b in buffers))
        return loops.sink(name)

    return Tensor.custom_kernel(*outs, *(stored(t, overwritten) for t in inputs), fxn=kernel)[: len(outs)]


def run_each(
    name: str, body: Callable[..., None], like: Tensor, *inputs: Tensor, whole: tuple[Tensor, ...] = ()
) -> Tensor:
    """A tensor like `like` whose every element `body(loops, out, *inputs, *whole)` computes, at `loops.problem`, from
    the same element of inputs of the same shape, and from anything in the tensors given as a whole. The name is the
    kernel's: no function that OpenCL or CUDA has."""
    size = like.numel()
    fill = -size % LANES if in_parallel(like) else 0
    # Threads that are too many compute the last element once more: of zeros a body's loop might never end.
    flat = [t.reshape(size).pad(((0, fill),), mode="replicate") if fill else t.reshape(size) for t in (like, *inputs)]
    (result,) = run(name, body, size + fill, 1, flat[:1], *flat[1:], *whole)
    return result.shrink(((0, size),)).reshape(like.shape)


def as_int(index: UOp) -> UOp:
    return index.cast(dtypes.int32)


def as_index(number: UOp, size: int) -> UOp:
    """A loaded number as an index below `size`."""
    return number.maximum(0).minimum(size - 1).cast(dtypes.weakint)
