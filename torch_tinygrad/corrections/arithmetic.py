"""Arithmetic of floats as it is written: what tinygrad rearranges as if numbers were exact stays as it is.

tinygrad simplifies floats by the rules of integers: `(x + 1e8) - 1e8` to x, `x / x` to 1 for zero too, `x / (1 + x)`
to `1 - 1 / (1 + x)`, which is 0 for small x, `x / 3` to a product with a rounded third. Each moves or drops a rounding,
and most only where a number is a constant, so that the same trace had other bits once that number became an input. Here
such rules keep to integers, and a product and a sum are rounded once only where the lowering says so (`fma` in
`lower/maths.py`, a MULACC): clang would do so wherever both stand in one expression."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tinygrad.codegen as codegen
from tinygrad.codegen.late import coalesce
from tinygrad.dtype import DType, dtypes, truncate
from tinygrad.renderer.cstyle import ClangRenderer, OpenCLRenderer
from tinygrad.uop import symbolic
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat

from . import rules
from .registry import correction, wrap

NO_FLOATS = (*dtypes.ints, dtypes.bool, dtypes.weakint, dtypes.void)

WRAPPING = frozenset(dtype for dtype in dtypes.ints if dtype in truncate and dtype not in dtypes.weaks)

_x, _y, _x2, _x3 = (UPat.var(name) for name in ("x", "y", "x2", "x3"))
_c, _c0, _c1, _c2 = (UPat.cvar(name) for name in ("c", "c0", "c1", "c2"))
_which, _t, _f, _tt, _ff = (UPat.var(name) for name in ("c", "t", "f", "tt", "ff"))
_d = (1 + _x).reciprocal().named("d")

# What tinygrad's rules simplify, and what they match.
INTEGERS_ALONE = {
    "x + 0": UPat({Ops.ADD, Ops.XOR, Ops.OR}, src=[_x, UPat.const(0)]),
    "x / x": _x / _x,
    "x * y / y": (_x * _x2) / _x2,
    "x * 0": _x * 0,
    "x * a + x * b": _x * _c0 + _x * _c1,
    "y + x * a + x * b": (_y + _x * _c0) + _x * _c1,
    "x + x * a": _x + _x * _c,
    "y + x + x * a": (_y + _x) + _x * _c,
    "y + x * a + x": (_y + _x * _c) + _x,
    "y + x + x": (_y + _x) + _x,
    "x / y / z": (_x / _x2) / _x3,
    "-(x + a)": -1 * (_x + _c),
    "y + where(c, ...) + where(c, ...)": (_y + _which.where(_t, _f)) + _which.where(_tt, _ff),
    "x + a + b": _x.alu(Ops.ADD, _c1).alu(Ops.ADD, _c2).named("f"),
    "x * a * b": _x.alu(Ops.MUL, _c1).alu(Ops.MUL, _c2).named("f"),
    "x + a + y": (_x + _c1) + _y,
    "x * a * y": (_x * _c1) * _y,
    "1 / (x * x)": (_x * _x).reciprocal(),
    "1 / (x * x * x)": (_x * _x * _x).reciprocal(),
    "1 / (x * a)": (_x * _c).reciprocal(),
    "x / (1 + x)": _x * _d,
    "x / (1 + x) * y": _x * (_d * _y),
    "x * (1 / (1 + x) + y)": _x * (_d + _y),
    "the sum of x * a": (_x * _c).reduce(arg=Ops.ADD, name="r", allow_any_len=True),
    "the sum of x * y": UPat(Ops.MUL).reduce(name="r", allow_any_len=True),
    "-(x + y)": -1 * (_x + _y),
}


@correction("0.14.0", "operators/test_numbers_exact.py::test_rounds_where_the_cpu_rounds")
def floats_are_not_rearranged() -> None:
    """Roundings of floats are moved or dropped by rules that hold for integers."""
    for what, pattern in INTEGERS_ALONE.items():
        rule = rules.find_pattern(symbolic.sym, pattern, what)
        rules.change_everywhere(rule, (_of(NO_FLOATS, rule[0]), rule[1]))


def _of(allowed: tuple, pattern: UPat) -> UPat:
    """The same, where the value has one of these dtypes."""
    any_length = not pattern.strict_length
    return UPat(pattern.op, allowed, pattern._in_src, pattern.arg, pattern.name, any_length, pattern.early_reject)


@correction("0.14.0", "operators/test_numbers_exact.py::test_functions_of_constants_are_those_of_inputs")
def one_times_a_constant_keeps_its_type() -> None:
    """A constant alone may have no type, and functions that count on its rounding (e**1) are computed without."""
    rule = rules.find_pattern(symbolic.sym, _x * 1, "x * 1")
    rules.change_everywhere(rule, (rule[0], _the_same))


def _the_same(x: UOp) -> UOp | None:
    return None if x.op is Ops.CONST and x.dtype in dtypes.weaks else x


@correction("0.14.0", "operators/test_numbers_exact.py::test_numbers_may_be_constants_or_inputs")
def quotients_are_rounded_once() -> None:
    """The inverse of a constant is folded, and what it multiplies is rounded twice: it is divided in the end. Integers
    are folded without an end: the digits of a constant that is squared again and again take all memory."""
    folding = [rule for rule in symbolic.sym.patterns if rule[1] is symbolic.fold_const_alu]
    if not folding:
        raise rules.RuleNotFound("those that fold constants", 0)
    for pattern, plain in folding:
        rules.change_everywhere((pattern, plain), (pattern, _folded))


def _folded(a: UOp) -> UOp | None:
    if a.op is Ops.FDIV:
        return None
    if a.op is Ops.RECIPROCAL:
        value = symbolic.const_arg(a.src[0])
        if isinstance(value, float) and math.frexp(value)[0] not in (0.5, -0.5):
            return None
    folded = symbolic.fold_const_alu(a)
    value = symbolic.const_arg(folded) if folded is not None and a.dtype in WRAPPING else None
    if isinstance(value, tuple):
        return a.const_like(tuple(_wrapped(each, a.dtype) for each in value))
    return folded if value is None else a.const_like(_wrapped(value, a.dtype))


def _wrapped(value: Any, dtype: DType) -> Any:
    return truncate[dtype](value) if isinstance(value, int) else value  # there are invalid ones


@correction("0.14.0", "operators/test_operators.py::test_every_operator_rounds_half_types")
def half_types_are_rounded_between_operators() -> None:
    """A rule that is meant for images takes every rounding to float16 between two operators away."""
    plain = coalesce.pm_simplify_add_image
    codegen.pm_simplify_add_image = rules.without(plain, rules.find(plain, Ops.CAST, "x"))


@correction("0.14.0", "engine/test_corrections.py::test_products_and_sums_are_rounded_apart")
def products_and_sums_are_rounded_apart() -> None:
    """Products and sums become one MULACC wherever a device has it, and compilers make them one wherever both stand in
    one expression: rounded once where PyTorch rounds twice."""
    wrap(codegen, "get_late_rewrite_patterns", _late_rules)
    wrap(ClangRenderer, "_render_defines", _defines)
    wrap(OpenCLRenderer, "render_kernel", _contracting_nothing)


def _late_rules(plain: Callable) -> Callable:
    """Nothing else becomes a MULACC, and where a device has none it is a product and a sum."""
    apart = (UPat(Ops.MULACC, src=(UPat.var("a"), UPat.var("b"), UPat.var("c"))), lambda a, b, c: a * b + c)

    def late_rules(ops: tuple[Ops, ...], *options) -> PatternMatcher:
        others = plain(tuple(op for op in ops if op is not Ops.MULACC), *options)
        return others if Ops.MULACC in ops else PatternMatcher([apart]) + others

    return late_rules


def _contracting_nothing(plain: Callable) -> Callable:
    def render_kernel(self: OpenCLRenderer, *args, **options) -> str:
        return "\n".join(["#pragma OPENCL FP_CONTRACT OFF", plain(self, *args, **options)])

    return render_kernel


def _defines(plain: Callable) -> Callable:
    return lambda self, uops: ["#pragma STDC FP_CONTRACT OFF", *plain(self, uops)]
