"""Corrections of tinygrad 0.14.0, applied wherever kernels are compiled. Each says what goes wrong without it."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace

import tinygrad.codegen as codegen
from tinygrad.codegen import simplify
from tinygrad.codegen.late import coalesce, gater
from tinygrad.device import TinyELF
from tinygrad.dtype import DType, bitcast, can_lossless_cast, dtypes
from tinygrad.runtime.ops_cpu import CPUProgram
from tinygrad.schedule import indexing, rangeify
from tinygrad.uop import weak
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat, _substitute, graph_rewrite, python_alu, recursive_property
from tinygrad.uop.symbolic import pm_data_invalid, sym, symbolic, symbolic_simple

from . import clang, fusion, kernel_cache, pairs, rules, wgsl
from . import exact as exact


def _move_where_load(gate, l, a, w):
    """`where(gate, cast(load), a)` may fold `a` into the load only if the load's dtype can hold it: a float beside a
    bool would come back as 0 or 1."""
    if a.op is Ops.CONST and not a.is_invalid:
        if l.dtype.const(a.val) != a.val:
            return None
    elif not a.is_invalid and a.dtype != l.dtype and not can_lossless_cast(a.dtype, l.dtype):
        if not (a.op is Ops.CAST and a.src[0].dtype == l.dtype):
            return None
    return gater.move_where_load(gate, l, a, w)


def _image_rules() -> PatternMatcher:
    """Without the one that is meant for images but takes every rounding to float16 between two operators away."""
    plain = coalesce.pm_simplify_add_image
    return rules.without(plain, rules.find(plain, Ops.CAST, "x"))


def _simplifications() -> PatternMatcher:
    """Without the one that makes one invalid constant of a vector of nothing but invalid lanes: what reshapes it then
    has no right shape. Lane by lane they fold as well."""
    return rules.without(symbolic_simple, rules.find(symbolic_simple, Ops.STACK, "i"))


def _load_collapse() -> PatternMatcher:
    """`x + y != c` becomes `x != c - y` only where x has a range to solve for: tinygrad's rule turns `x != c - y` back
    where none of them has, for ever."""

    def solved(x: UOp, y: UOp, c: UOp) -> UOp | None:
        if simplify.no_range(x) or not (simplify.no_range(y) and simplify.no_range(c)):
            return None
        return x != (c.cast(y.dtype) - y)

    return rules.corrected(_plain_load_collapse, rules.find(_plain_load_collapse, Ops.CMPNE, "x y c"), solved)


def _constant(self: DType, value):
    """A constant of this dtype. Integers of nan and the infinities are what conversions on the CPU give, and integers
    wrap; without this, folding such a conversion raises or writes a literal that does not fit, and a folded 0 - 1 of
    uint8 is -1 in what reads it."""
    if isinstance(value, float) and not math.isfinite(value) and dtypes.is_int(self):
        return self.min if self in (dtypes.int32, dtypes.int64) else 0
    result = _plain_constant(self, value)
    if type(result) is int and self in dtypes.ints and not self.min <= result <= self.max:
        return (result - self.min) % (1 << self.bitsize) + self.min
    return result


def _merged_ranges(u: UOp) -> UOp | None:
    """A loop in the place of two where that takes no more divisions. tinygrad goes on to merge loops that it has merged
    already: where one of them only repeats a sum (that of `cat([x, x], -1)`), the repetition is lost."""
    if not all(r.op is Ops.RANGE for r in u.ended_ranges):
        return None
    sums = [x.ranges for x in u.backward_slice_with_self if x.op is Ops.REDUCE]
    pairs = itertools.pairwise if u.op is Ops.END else lambda ranges: itertools.permutations(ranges, 2)
    for outer, inner in pairs(u.ended_ranges):
        apart = any((outer in ranges) != (inner in ranges) for ranges in sums)
        if apart or outer.arg[-1] != inner.arg[-1] or not {outer, inner} <= set(u.ended_ranges):
            continue
        both = outer.replace(src=(outer.src[0] * inner.src[0],))
        places = {outer: both // inner.src[0], inner: both % inner.src[0]}
        merged = graph_rewrite(u, _substitute + symbolic + simplify.pm_flatten_range, ctx=places, name="merge ranges")
        if simplify.count_divmod(merged) <= simplify.count_divmod(u):
            u = merged
    return u


def _symbolic() -> PatternMatcher:
    """Storing what is there already may be dropped only if nobody must have written it before: a sum of nothing but
    zeros would leave its variable as it was found."""

    def dropped(index: UOp) -> UOp | None:
        return None if index.src[0].op is Ops.AFTER else UOp(Ops.NOOP)

    return rules.corrected(sym, rules.find(sym, Ops.STORE, "index"), dropped)


def _differ(a, b) -> bool:
    """Whether two constants differ, as numbers do: tinygrad's nan equals itself, so that `x != x` folds to False."""
    return float.__ne__(a, b) if isinstance(a, float) and isinstance(b, float) else a != b


def _bounds(self: UOp):
    """A constant nan has no bounds: comparisons with it fold as if it were a number."""
    if self.op is Ops.CONST and isinstance(self.arg, float) and math.isnan(self.arg):
        return -math.inf, math.inf
    return _plain_bounds(self)


_plain_bounds = UOp._min_max.func
UOp._min_max = functools.cached_property(_bounds)
UOp._min_max.__set_name__(UOp, "_min_max")
python_alu[Ops.CMPNE] = _differ
python_alu[Ops.CMPEQ] = lambda a, b: not _differ(a, b)

_plain_range_rules = simplify.pm_simplify_ranges
_plain_load_collapse = simplify.pm_reduce_load_collapse
_plain_constant = DType.const
DType.const = _constant


def _bits_of_a_number(root: UOp, c: UOp) -> UOp | None:
    """The bits of a number that lost its dtype: `0 ^ number` folds to the number alone, which is rendered as an int of
    32 bits, too narrow for a double."""
    width = root.dtype.itemsize
    if c.dtype == dtypes.weakint:
        typed = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}[width]
    else:
        typed = {2: dtypes.float16, 4: dtypes.float32, 8: dtypes.float64}[width]
    return root.const_like(bitcast(typed.const(c.val), typed, root.dtype))


def _index_dtypes() -> PatternMatcher:
    number = UPat.cvar("c", dtype=dtypes.weaks)
    rule = (UPat(Ops.BITCAST, name="root", src=(number,)), _bits_of_a_number)
    return PatternMatcher([rule, *weak.pm_lower_index_dtype.patterns])


def _operations(self: UOp) -> int:
    """A bit for each kind of operation that a value is made of."""
    return functools.reduce(lambda found, source: found | source._operations, self.src, 1 << self.op.value)


def _is_made_of(self: UOp, *kinds: Ops) -> bool:
    """tinygrad looks through all that a value is made of, again for each value: quadratic in what patches compose."""
    return any(self._operations >> kind.value & 1 for kind in kinds)


def _conditions(self: UOp) -> frozenset[UOp]:
    """The conditions that a value is made of. tinygrad keeps those of every value, memory quadratic in the size of a
    graph, and never asks for those of what loads."""
    if _is_made_of(self, Ops.INDEX):
        return frozenset()
    return frozenset().union(*[s.bool_slice for s in self.src])


UOp._bool_slice = recursive_property(_conditions)
UOp._operations = recursive_property(_operations)
UOp.op_in_backward_slice_with_self = _is_made_of


def _lifted_from_true(cond, i, x, a, c):
    """What is invalid where a condition chooses it makes the whole invalid, but only if the condition is known without
    reading data: that may be invalid itself where nobody wants it, and `or` with it would be. tinygrad then stored
    nothing there."""
    if c.is_invalid or a.op_in_backward_slice_with_self(Ops.INDEX, Ops.LOAD, Ops.REDUCE):
        return None
    return (a.logical_not() | cond).where(a.where(x, c), i)


def _lifted_from_false(cond, i, x, a, b):
    if b.is_invalid or a.op_in_backward_slice_with_self(Ops.INDEX, Ops.LOAD, Ops.REDUCE):
        return None
    return (a | cond).where(a.where(b, x), i)


# Rules are parts of many sets of rules by now: these two are changed where they are.
for _names, _sound in (("cond i x a c", _lifted_from_true), ("cond i x a b", _lifted_from_false)):
    rules.find(pm_data_invalid, Ops.WHERE, _names)[1].__code__ = _sound.__code__


def _numbered(sink: UOp) -> UOp | None:
    """The number of a thread comes after all buffers. tinygrad numbers it by how many there are, and takes it for the
    last one where one before that turned out not to be needed."""
    params = [u for u in sink.toposort() if u.op is Ops.PARAM]
    unnumbered = [u for u in params if u.arg.slot == -1]
    after = itertools.count(1 + max((u.arg.slot for u in params), default=-1))
    places = {u: u.replace(arg=replace(u.arg, slot=next(after))) for u in unnumbered}
    return sink.substitute(places, walk=True) if places else None


def _init_program(self: CPUProgram, device, code) -> None:
    """As above, where tinygrad itself runs a kernel (in its search): the thread's place among the arguments."""
    _plain_init_program(self, device, code)
    self.runtimevars = {name: place for place, (name, *_) in enumerate(code.signature) if name == "core_id"}


def _to_elf(self: UOp) -> TinyELF:
    """A kernel's arguments numbered as they are passed: without those that its code does not use. OpenCL's runtime
    looks for an argument at its number among all."""
    made = _plain_to_elf(self)
    return replace(made, signature=tuple((name, i, *rest) for i, (name, _, *rest) in enumerate(made.signature)))


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
    """tinygrad looks for a store's target in all that its value was ever computed from, which takes time quadratic in
    the number of steps of a loop. Only what the same kernel reads can be overwritten too early."""
    return rangeify.fix_store_hazard(target, src) if _reads(src, target.base) else None


def _realize_source(ctx: indexing.IndexingContext, dest: UOp, src: UOp) -> None:
    """As above, for the value of a store to itself."""
    if _reads(src, dest.base):
        ctx.realize_map[src] = None


_plain_to_elf = UOp.to_elf
UOp.to_elf = _to_elf
_plain_init_program = CPUProgram.__init__
CPUProgram.__init__ = _init_program
_parameter_numbers = PatternMatcher([(UPat(Ops.SINK, name="sink"), _numbered)])
_plain_rewrites, _plain_realize_map = rangeify.earliest_rewrites, indexing.pm_generate_realize_map


def apply() -> None:
    """Safe to call more than once."""
    kernel_cache.apply()
    fusion.apply()
    clang.provide()
    pairs.apply()
    wgsl.apply()
    if codegen.pm_move_gates_from_index is gater.pm_move_gates_from_index:
        plain = gater.pm_move_gates_from_index
        codegen.pm_move_gates_from_index = rules.replaced(plain, gater.move_where_load, _move_where_load)
    if codegen.pm_simplify_add_image is coalesce.pm_simplify_add_image:
        codegen.pm_simplify_add_image = _image_rules()
    if codegen.pm_lower_index_dtype is weak.pm_lower_index_dtype:
        codegen.pm_lower_index_dtype = _index_dtypes()
    codegen.pm_number_params = _parameter_numbers
    if codegen.symbolic_simple is symbolic_simple:
        codegen.symbolic_simple = _simplifications()
    if simplify.pm_reduce_load_collapse is _plain_load_collapse:
        simplify.pm_reduce_load_collapse = _load_collapse()
    if simplify.pm_simplify_ranges is _plain_range_rules:
        merging = rules.replaced(_plain_range_rules, simplify.simplify_merge_adjacent, _merged_ranges)
        simplify.pm_simplify_ranges = codegen.pm_simplify_ranges = merging
    if codegen.sym is sym:
        codegen.sym = _symbolic()
    if rangeify.earliest_rewrites is _plain_rewrites:
        rangeify.earliest_rewrites = rules.replaced(_plain_rewrites, rangeify.fix_store_hazard, _store_hazard)
        old = indexing.realize_store_after_src
        indexing.pm_generate_realize_map = rules.replaced(_plain_realize_map, old, _realize_source)
