"""When a value is stored, and when every kernel computes it for itself: fusion with a bound.

tinygrad marks as a *stage* each value that is read at several places: shifted, rolled, padded, broadcast or gathered.
It then computes most stages again wherever they are read, so that a value which reads another at five places, which
reads a third at five places, computes the third 25 times. Here a stage is computed again only while what that takes,
everything inside it counted with its own repetitions, stays within a bound; beyond it the stage is stored. Stages are
looked at from the loads up, so the bound holds along any chain, and kernels grow with the number of reads alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from tinygrad.dtype import dtypes
from tinygrad.schedule import rangeify
from tinygrad.schedule.indexing import BufferizeOpts
from tinygrad.uop.ops import AxisType, GroupOp, Ops, PatternMatcher, UOp, UPat, recursive_property

# Operations that computing a stage at every place that reads it may take more than computing it once. A read that is
# repeated along a loop, as what is broadcast is, counts as so many.
MOST = 64
_REPEATED = 4
# Operations one after another in a kernel: the time that tinygrad takes for one grows with their square.
DEEP = 128
# What a slow function costs.
_SLOW = {Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.POW, Ops.THREEFRY}
_SLOW_COST = 6
_STORED = {Ops.BUFFER, Ops.AFTER, Ops.PARAM, Ops.STAGE}

# Of the graphs that were scheduled last, the nodes: what the time that takes stands for.
NODES: deque[int] = deque(maxlen=64)
_reads: Counter[tuple[UOp, ...]] = Counter()  # of each stage, by its loops


def cost(value: UOp, most: int) -> int:
    """Loads and operations that computing an element takes, each counted once; about `most` if there are more."""
    total, seen, stack = 0, set(), [value]
    while stack and total <= most:
        u = stack.pop()
        if u in seen or u.op in _STORED:
            continue
        seen.add(u)
        if u.op is Ops.INDEX:
            total += 1
            stack.append(u.src[0])
        else:
            total += _SLOW_COST if u.op in _SLOW else u.op in GroupOp.ALU and u.dtype != dtypes.weakint
            stack.extend(u.src)
    return total


def _kept_or_computed(src: UOp, buf: UOp, idx: UOp) -> UOp | None:
    """What stands in the place of a read of a stage; None where the stage is stored. Places and other arithmetic on
    indices alone cost less than loads, however often they are read."""
    again = _reads.get(buf.src[1:], 2) - 1
    if not src.op_in_backward_slice_with_self(Ops.INDEX):
        again = min(again, 1)
    if again and cost(src, MOST // again) * again > MOST:
        return None
    return _plain_remove(src, buf, idx)


def _depth(self: UOp) -> int:
    """The operations one after another between a value and what is stored."""
    if self.op in _STORED:
        return 0
    return max((s._depth for s in self.src), default=0) + (self.op in GroupOp.ALU)


def _cut(ctx: rangeify.LimitBufsContext, root: UOp) -> UOp | None:
    """Stores operands that are too deep: the sums in them, where there are any, since whatever else is stored of them
    would be computed with all that they sum up."""
    deep = [s for s in root.src if s.op in GroupOp.Elementwise and s.device is not None and s._depth >= DEEP]
    if not deep:
        return None
    stored = {s: _staged(ctx, s) for s in _sums_of(deep) or deep}
    return root.replace(src=tuple(_with(stored, s) for s in root.src))


def _sums_of(values: list[UOp]) -> list[UOp]:
    """Those that are computed in the same kernel, but none that another sums up."""
    sums, seen, stack = [], set(), list(values)
    while stack:
        u = stack.pop()
        if u in seen or u.op in _STORED:
            continue
        seen.add(u)
        if u.op is Ops.REDUCE:
            sums.append(u)
        else:
            stack.extend(u.src)
    return sums


def _staged(ctx: rangeify.LimitBufsContext, value: UOp) -> UOp:
    loops = [r for r in value.ranges if r.arg[-1] is not AxisType.DEVICE]
    own = [r.replace(arg=(next(ctx.range_idx), AxisType.WEAK)) for r in loops]
    stage = _over(dict(zip(loops, own, strict=True)), value).bufferize(*own, arg=BufferizeOpts(value.device))
    return stage.index(*loops)


def _over(renamed: dict[UOp, UOp], value: UOp) -> UOp:
    """The value over other loops. A single number, such as what a norm takes a root of, is over none."""
    return _with(renamed, value, lambda u: any(loop in u.ranges for loop in renamed))


def _with(others: dict[UOp, UOp], value: UOp, within: Callable[[UOp], bool] = lambda u: u.op not in _STORED) -> UOp:
    """The value with others in the places of some of its parts. tinygrad's substitution would look at all that was
    stored for it as well, and at what was stored for that."""
    made = dict(others)
    for u in value.toposort(lambda u: u not in others and within(u)):
        if u not in made and (src := tuple(made.get(s, s) for s in u.src)) != u.src:
            made[u] = u.replace(src=src)
    return made.get(value, value)


def _counted(tsink: UOp, debug: bool = False) -> UOp:
    """tinygrad's stages, with their reads counted."""
    tsink = _plain_rangeify(tsink, debug)
    nodes = tsink.toposort()
    reads: dict[UOp, int] = {}
    for u in nodes:
        for s in u.src:
            if s.op is Ops.INDEX and s.src[0].op is Ops.STAGE:
                reads[s] = max(reads.get(s, 1), _REPEATED if len(u.ranges) > len(s.ranges) else 1)
    _reads.clear()
    for s, count in reads.items():
        _reads[s.src[0].src[1:]] += count
    NODES.append(len(nodes))
    return tsink


UOp._depth = recursive_property(_depth)
_plain_remove, _plain_rangeify = rangeify.remove_bufferize, rangeify.run_rangeify
_plain_rules = rangeify.pm_remove_bufferize


def apply() -> None:
    """Safe to call more than once."""
    if rangeify.pm_remove_bufferize is _plain_rules:
        rules = _plain_rules.patterns
        rangeify.pm_remove_bufferize = PatternMatcher(
            [(pattern, _kept_or_computed if rule is _plain_remove else rule) for pattern, rule in rules]
        )
        rangeify.run_rangeify = _counted
        cut = PatternMatcher([(UPat({*GroupOp.Binary, *GroupOp.Ternary}, name="root"), _cut)])
        rangeify.pm_limit_bufs = rangeify.pm_limit_bufs + cut
