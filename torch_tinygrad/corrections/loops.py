"""Loops and stores: what tinygrad merges, drops or orders wrongly, and what takes it time or memory quadratic in the
size of a graph."""

from __future__ import annotations

import functools
import itertools

import tinygrad.codegen as codegen
from tinygrad.codegen import simplify
from tinygrad.schedule import indexing, rangeify
from tinygrad.uop.ops import Ops, UOp, _substitute, graph_rewrite, recursive_property
from tinygrad.uop.symbolic import sym, symbolic

from . import rules
from .registry import correction


@correction("0.14.0", "aliasing/test_findings.py::test_rows_of_a_tensor_built_by_accumulation_compile")
def comparisons_are_solved_once() -> None:
    """`x + y != c` becomes `x != c - y` where none of them has a range to solve for. Another rule turns it back, for
    ever."""
    plain = simplify.pm_reduce_load_collapse
    simplify.pm_reduce_load_collapse = rules.corrected(plain, rules.find(plain, Ops.CMPNE, "x y c"), _solved)


def _solved(x: UOp, y: UOp, c: UOp) -> UOp | None:
    if simplify.no_range(x) or not (simplify.no_range(y) and simplify.no_range(c)):
        return None
    return x != (c.cast(y.dtype) - y)


@correction("0.14.0", "aliasing/test_findings.py::test_sums_of_repeated_elements_count_every_repetition")
def merged_loops_are_not_merged_again() -> None:
    """tinygrad goes on to merge loops that it has merged already: where one of them only repeats a sum (that of
    `cat([x, x], -1)`), the repetition is lost."""
    merging = rules.replaced(simplify.pm_simplify_ranges, simplify.simplify_merge_adjacent, _merged_ranges)
    simplify.pm_simplify_ranges = codegen.pm_simplify_ranges = merging


def _merged_ranges(u: UOp) -> UOp | None:
    """A loop in the place of two where that takes no more divisions."""
    if not all(r.op is Ops.RANGE for r in u.ended_ranges):
        return None
    sums = [x.ranges for x in u.backward_slice_with_self if x.op is Ops.REDUCE]
    pairs = itertools.pairwise if u.op is Ops.END else lambda ranges: itertools.permutations(ranges, 2)
    for outer, inner in pairs(u.ended_ranges):
        apart = any((outer in ranges) != (inner in ranges) for ranges in sums)
        if apart or outer.arg[-1] != inner.arg[-1] or not {outer, inner} <= set(u.ended_ranges):
            continue
        both = outer.replace(src=(outer.src[0] * inner.src[0],))
        parts = {outer: both // inner.src[0], inner: both % inner.src[0]}
        merged = graph_rewrite(u, _substitute + symbolic + simplify.pm_flatten_range, ctx=parts, name="merge ranges")
        if simplify.count_divmod(merged) <= simplify.count_divmod(u):
            u = merged
    return u


@correction("0.14.0", "engine/test_corrections.py::test_what_was_stored_before_is_not_dropped")
def sums_of_zeros_are_stored() -> None:
    """Storing what is there already is dropped also where somebody must have written it before: a sum of nothing but
    zeros leaves its variable as it was found."""
    codegen.sym = rules.corrected(sym, rules.find(sym, Ops.STORE, "index"), _dropped)


def _dropped(index: UOp) -> UOp | None:
    return None if index.src[0].op is Ops.AFTER else UOp(Ops.NOOP)


@correction("0.14.0", "engine/test_corrections.py::test_what_a_value_is_made_of_is_known_once")
def what_a_value_is_made_of_is_known_once() -> None:
    """tinygrad looks through all that a value is made of, again for each value: quadratic in what patches compose."""
    UOp._operations = recursive_property(_operations)
    _must_have(UOp, "op_in_backward_slice_with_self")
    UOp.op_in_backward_slice_with_self = _is_made_of


def _operations(self: UOp) -> int:
    """A bit for each kind of operation that a value is made of."""
    return functools.reduce(lambda found, source: found | source._operations, self.src, 1 << self.op.value)


def _is_made_of(self: UOp, *kinds: Ops) -> bool:
    return any(self._operations >> kind.value & 1 for kind in kinds)


@correction("0.14.0", "engine/test_corrections.py::test_conditions_of_what_loads_are_not_kept")
def conditions_of_what_loads_are_not_kept() -> None:
    """tinygrad keeps the conditions of every value, memory quadratic in the size of a graph. It never asks for those of
    what loads."""
    _must_have(UOp, "_bool_slice")
    UOp._bool_slice = recursive_property(_conditions)


def _conditions(self: UOp) -> frozenset[UOp]:
    if self.op_in_backward_slice_with_self(Ops.INDEX):
        return frozenset()
    return frozenset().union(*[s.bool_slice for s in self.src])


def _must_have(owner: type, name: str) -> None:
    getattr(owner, name)


@correction("0.14.0", "engine/test_corrections.py::test_stores_look_at_what_their_own_kernel_reads")
def stores_look_at_what_their_own_kernel_reads() -> None:
    """tinygrad looks for a store's target in all that its value was ever computed from, which takes time quadratic in
    the number of steps of a loop. Only what the same kernel reads can be overwritten too early."""
    rangeify.earliest_rewrites = rules.replaced(rangeify.earliest_rewrites, rangeify.fix_store_hazard, _store_hazard)
    plain = indexing.pm_generate_realize_map
    indexing.pm_generate_realize_map = rules.replaced(plain, indexing.realize_store_after_src, _realize_source)


def _reads(src: UOp, base: UOp) -> bool:
    """Whether the kernel that computes `src` reads `base` itself: what is behind a stored value belongs to others."""
    seen, stack = set(), [src]
    while stack:
        if (u := stack.pop()) is base or (u.op is Ops.AFTER and u.buf_uop is base):
            return True
        if u not in seen and u.op is not Ops.AFTER:
            seen.add(u)
            stack.extend(u.src)
    return False


def _store_hazard(target: UOp, src: UOp) -> UOp | None:
    return rangeify.fix_store_hazard(target, src) if _reads(src, target.base) else None


def _realize_source(ctx: indexing.IndexingContext, dest: UOp, src: UOp) -> None:
    """As above, for the value of a store to itself."""
    if _reads(src, dest.base):
        ctx.realize_map[src] = None
