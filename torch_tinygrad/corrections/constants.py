"""Constants: how tinygrad folds them, and what it takes invalid ones for."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import tinygrad.codegen as codegen
from tinygrad.codegen.late import gater
from tinygrad.dtype import DType, bitcast, can_lossless_cast, dtypes
from tinygrad.uop import weak
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat, python_alu
from tinygrad.uop.symbolic import pm_data_invalid, symbolic_simple

from . import rules
from .registry import correction, wrap


@correction(
    "0.14.0", "aliasing/test_findings.py::test_folded_numbers_of_narrow_integers_wrap_before_they_are_converted"
)
def constants_are_converted_as_on_the_cpu() -> None:
    """Folding a conversion of nan or an infinity to an integer raises, or writes a literal that does not fit; a folded
    0 - 1 of uint8 is -1 in what reads it."""
    wrap(DType, "const", _constant)


def _constant(plain: Callable) -> Callable:
    """Integers of nan and the infinities are what conversions on the CPU give, and integers wrap."""

    def const(self: DType, value):
        if isinstance(value, float) and not math.isfinite(value) and dtypes.is_int(self):
            return self.min if self in (dtypes.int32, dtypes.int64) else 0
        result = plain(self, value)
        if type(result) is int and self in dtypes.ints and not self.min <= result <= self.max:
            return (result - self.min) % (1 << self.bitsize) + self.min
        return result

    return const


@correction("0.14.0", "aliasing/test_findings.py::test_a_constant_nan_differs_from_itself")
def nan_differs_from_itself() -> None:
    """tinygrad's nan equals itself, so that `x != x` folds to False."""
    if not {Ops.CMPNE, Ops.CMPEQ} <= python_alu.keys():
        raise rules.RuleNotFound("the comparison of constants", 0)
    python_alu[Ops.CMPNE] = _differ
    python_alu[Ops.CMPEQ] = lambda a, b: not _differ(a, b)


def _differ(a, b) -> bool:
    return float.__ne__(a, b) if isinstance(a, float) and isinstance(b, float) else a != b


@correction("0.14.0", "operators/test_numbers_exact.py::test_whole_parts_of_constants_keep_their_sign")
def whole_parts_keep_their_sign() -> None:
    """What is cut off a constant -0.0 leaves an integer, which has no sign."""
    plain = python_alu[Ops.TRUNC]
    python_alu[Ops.TRUNC] = lambda x: math.copysign(plain(x), x)


@correction("0.14.0", "engine/test_corrections.py::test_a_number_that_may_be_nan_has_no_bounds")
def nan_has_no_bounds() -> None:
    """The bounds of one of several numbers leave nan out, unless it is the first: 5 or nan is less than 7, always."""
    plain = UOp._min_max.func

    def bounds(self: UOp):
        if self.op is Ops.CONST and isinstance(self.arg, float) and math.isnan(self.arg):
            return -math.inf, math.inf
        return plain(self)

    UOp._min_max = functools.cached_property(bounds)
    UOp._min_max.__set_name__(UOp, "_min_max")


@correction("0.14.0", "aliasing/test_findings.py::test_bits_of_a_folded_number_are_as_wide_as_its_dtype")
def bits_are_those_of_the_dtype() -> None:
    """A number that lost its dtype, as `0 ^ number` folds to the number alone, is rendered as an int of 32 bits, too
    few for a double."""
    number = UPat.cvar("c", dtype=dtypes.weaks)
    rule = (UPat(Ops.BITCAST, name="root", src=(number,)), _bits_of_a_number)
    codegen.pm_lower_index_dtype = PatternMatcher([rule, *weak.pm_lower_index_dtype.patterns])


def _bits_of_a_number(root: UOp, c: UOp) -> UOp | None:
    width = root.dtype.itemsize
    if c.dtype == dtypes.weakint:
        typed = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}[width]
    else:
        typed = {2: dtypes.float16, 4: dtypes.float32, 8: dtypes.float64}[width]
    return root.const_like(bitcast(typed.const(c.val), typed, root.dtype))


@correction("0.14.0", "engine/test_corrections.py::test_numbers_beside_loaded_ones_keep_their_values")
def loads_take_what_their_dtype_can_hold() -> None:
    """`where(gate, cast(load), a)` folds `a` into the load: 0.5 beside integers comes back as 0."""
    plain = gater.pm_move_gates_from_index
    codegen.pm_move_gates_from_index = rules.replaced(plain, gater.move_where_load, _move_where_load)


def _move_where_load(gate, l, a, w):
    """Only if the load's dtype can hold it."""
    if a.op is Ops.CONST and not a.is_invalid:
        if l.dtype.const(a.val) != a.val:
            return None
    elif not a.is_invalid and a.dtype != l.dtype and not can_lossless_cast(a.dtype, l.dtype):
        if not (a.op is Ops.CAST and a.src[0].dtype == l.dtype):
            return None
    return gater.move_where_load(gate, l, a, w)


@correction("0.14.0", "engine/test_corrections.py::test_vectors_of_invalid_lanes_keep_their_shape")
def vectors_of_invalid_lanes_keep_their_shape() -> None:
    """A vector of nothing but invalid lanes becomes one invalid constant, and what reshapes it has no right shape. Lane
    by lane they fold as well."""
    codegen.symbolic_simple = rules.without(symbolic_simple, rules.find(symbolic_simple, Ops.STACK, "i"))


@correction("0.14.0", "engine/test_corrections.py::test_choices_by_data_make_nothing_invalid")
def choices_by_data_make_nothing_invalid() -> None:
    """What is invalid where a condition chooses it makes the whole invalid, also where the condition is read from data:
    that may be invalid itself where nobody wants it, `or` with it is too, and nothing is stored there."""
    for names, sound in (("cond i x a c", _lifted_from_true), ("cond i x a b", _lifted_from_false)):
        rule = rules.find(pm_data_invalid, Ops.WHERE, names)
        rules.change_everywhere(rule, (rule[0], sound))


def _lifted_from_true(cond, i, x, a, c):
    if c.is_invalid or a.op_in_backward_slice_with_self(Ops.INDEX, Ops.LOAD, Ops.REDUCE):
        return None
    return (a.logical_not() | cond).where(a.where(x, c), i)


def _lifted_from_false(cond, i, x, a, b):
    if b.is_invalid or a.op_in_backward_slice_with_self(Ops.INDEX, Ops.LOAD, Ops.REDUCE):
        return None
    return (a | cond).where(a.where(b, x), i)
