"""Arithmetic of floats as it is written: what tinygrad rearranges as if numbers were exact stays as it is.

tinygrad simplifies floats by the rules of integers: `(x + 1e8) - 1e8` to x, `x / x` to 1 for zero too, `x / (1 + x)`
to `1 - 1 / (1 + x)`, which is 0 for small x, `x / 3` to a product with a rounded third. Each moves or drops a rounding,
and most only where a number is a constant, so that the same trace had other bits once that number became an input. Here
such rules keep to integers, and a product and a sum are rounded once only where the lowering says so (`fma` in
`lower/maths.py`, a MULACC): clang would do so wherever both stand in one expression."""

from __future__ import annotations

import math
from types import FunctionType

import tinygrad.codegen as codegen
from tinygrad.dtype import DType, dtypes
from tinygrad.renderer import cstyle
from tinygrad.renderer.cstyle import ClangRenderer, CStyleLanguage, CUDARenderer
from tinygrad.renderer.wgsl import WGSLRenderer
from tinygrad.uop import symbolic as rules
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat

UNSIGNED_ALIKE = {Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG}  # the same bits, signed or not
WRAPS = {dtypes.int32: dtypes.uint32, dtypes.int64: dtypes.uint64}

FLOATS = True
INTEGERS_ALONE = False
# tinygrad's rules for sums, products, quotients and reductions, in its order: the names of what they match, what they
# simplify, and what they hold for.
RULES = [
    (("x",), "x + 0", INTEGERS_ALONE),
    (("x",), "x * 1", FLOATS),
    (("x", "y"), "x * y of bools", FLOATS),
    (("x", "y"), "x + y of bools", FLOATS),
    (("x",), "0 / 0", FLOATS),
    (("x",), "x * 0 / 0", FLOATS),
    (("x",), "x / x", INTEGERS_ALONE),
    (("x", "x2"), "x * y / y", INTEGERS_ALONE),
    (("x",), "x * 0", INTEGERS_ALONE),
    (("x", "c0", "c1"), "x * a + x * b", INTEGERS_ALONE),
    (("x", "y", "c0", "c1"), "y + x * a + x * b", INTEGERS_ALONE),
    (("x", "c"), "x + x * a", INTEGERS_ALONE),
    (("x", "y", "c"), "y + x + x * a", INTEGERS_ALONE),
    (("x", "y", "c"), "y + x * a + x", INTEGERS_ALONE),
    (("x",), "x + x", FLOATS),
    (("y", "x"), "y + x + x", INTEGERS_ALONE),
    (("x", "x2", "x3"), "x / y / z", INTEGERS_ALONE),
    (("x", "c"), "-(x + a)", INTEGERS_ALONE),
    (("x", "y", "c"), "a * (x + b) of indices", FLOATS),
    (("y", "c", "t", "tt", "f", "ff"), "y + where(c, ...) + where(c, ...)", INTEGERS_ALONE),
    (("c", "t", "f"), "where(c, x, 0) + where(c, 0, y)", FLOATS),
    (("f", "x", "c1", "c2"), "x + a + b", INTEGERS_ALONE),
    (("f", "x", "c1", "c2"), "x * a * b", INTEGERS_ALONE),
    (("x", "c1", "y"), "x + a + y", INTEGERS_ALONE),
    (("x", "c1", "y"), "x * a * y", INTEGERS_ALONE),
    (("x",), "1 / (x * x)", INTEGERS_ALONE),
    (("x",), "1 / (x * x * x)", INTEGERS_ALONE),
    (("x", "c"), "1 / (x * a)", INTEGERS_ALONE),
    (("x", "d"), "x / (1 + x)", INTEGERS_ALONE),
    (("x", "y", "d"), "x / (1 + x) * y", INTEGERS_ALONE),
    (("x", "y", "d"), "x * (1 / (1 + x) + y)", INTEGERS_ALONE),
    (("x", "c", "r"), "the sum of x * a", INTEGERS_ALONE),
    (("r",), "the sum of x * y", INTEGERS_ALONE),
    (("x", "y"), "-(x + y)", INTEGERS_ALONE),
    (("x", "y", "c"), "(x + y) * a of indices", FLOATS),
]


def _names(rule: FunctionType) -> tuple[str, ...]:
    return rule.__code__.co_varnames[: rule.__code__.co_argcount]


def _arithmetic_rules() -> list[FunctionType]:
    heads = {Ops.ADD, Ops.MUL, Ops.RECIPROCAL, Ops.REDUCE}
    written = [
        rule
        for pattern, rule in rules.sym.patterns
        if len(pattern.op) <= 3 and heads.intersection(pattern.op) and rule is not rules.fold_add_divmod_recombine
    ]
    return list(dict.fromkeys(written))


def _keep_to_integers(rule: FunctionType, place: int) -> None:
    """Changes the rule where it is: it is part of many sets of rules by now."""
    names = _names(rule)
    plain = FunctionType(rule.__code__, rule.__globals__, f"integers_{place}")
    rule.__globals__[plain.__name__] = plain
    rule.__globals__["is_float"] = _is_float
    call = ", ".join(names)
    guarded = eval(f"lambda {call}: None if is_float({names[0]}) else {plain.__name__}({call})")
    rule.__code__ = guarded.__code__


def _keep_types(rule: FunctionType) -> None:
    """One times a constant is a constant of the product's type: a constant alone may have none, and functions that
    count on its rounding (e**1) would be computed without."""
    rule.__globals__["is_untyped"] = _is_untyped
    rule.__code__ = eval("lambda x: None if is_untyped(x) else x").__code__


def _is_untyped(value: UOp) -> bool:
    return value.op is Ops.CONST and value.dtype in dtypes.weaks


def _is_float(value: UOp) -> bool:
    return dtypes.is_float(value.dtype)


def _folded(a: UOp) -> UOp | None:
    """tinygrad's folding of constants, but for quotients that are not exact: what an inverse multiplies is divided in
    the end, and would be rounded twice."""
    if a.op is Ops.FDIV:
        return None
    values = [rules.const_arg(s) for s in a.src]
    if any(v is None for v in values):
        return None
    if a.op is Ops.RECIPROCAL and isinstance(values[0], float) and math.frexp(values[0])[0] not in (0.5, -0.5):
        return None
    return a.const_like(rules.exec_alu(a.op, a.dtype, values, False))


def _late_rules(ops: tuple[Ops, ...], *options):
    """Nothing else becomes a MULACC, and where a device has none it is a product and a sum."""
    plain = _plain_late_rules(tuple(op for op in ops if op is not Ops.MULACC), *options)
    if Ops.MULACC in ops:
        return plain
    apart = (UPat(Ops.MULACC, src=(UPat.var("a"), UPat.var("b"), UPat.var("c"))), lambda a, b, c: a * b + c)
    return PatternMatcher([apart]) + plain


def _fma(double: str, single: str):
    def render(a: str, b: str, c: str, dtype: DType) -> str:
        return f"{double if dtype == dtypes.float64 else single}({a},{b},{c})"

    return render


def _negative(x: str, dtype: DType) -> str:
    """In brackets: C reads a - -b without them as a decrement, and such differences are not simplified any more."""
    return f"(-{x})"


def _least_long(c: UOp) -> str | None:
    """C has no literal for the least int64: what looks like one is the negative of an unsigned number, and compares as
    unsigned."""
    return f"({dtypes.int64.min + 1}l-1l)" if c.val == dtypes.int64.min else None


def _wrapping(uops: list[UOp]) -> set[UOp]:
    """Sums and products of loaded integers that are values, not places: they wrap, and what C leaves undefined where
    signed numbers overflow would let a compiler assume that they do not. Places do not overflow, and rely on that."""
    loaded: set[UOp] = set()
    for u in uops:
        if u.op is Ops.LOAD or not loaded.isdisjoint(u.src):
            loaded.add(u)
    values: set[UOp] = set()
    for u in reversed(uops):
        if u.op in (Ops.STORE, Ops.LOAD):
            values.update(u.src[1:])
        elif u.op is Ops.IF or (u in values and u.op is not Ops.INDEX):
            values.update(u.src)
    return {u for u in values & loaded if u.op in UNSIGNED_ALIKE and u.dtype in WRAPS}


def _render(self: CStyleLanguage, uops: list[UOp]):
    self.wrapping = set() if isinstance(self, WGSLRenderer) else _wrapping(uops)  # whose integers wrap, and no C
    return _plain_render(self, uops)


def _wrapped(ctx: CStyleLanguage, x: UOp) -> str | None:
    if x not in ctx.wrapping or x.max_numel() > 1:
        return None
    unsigned = ctx.render_dtype(WRAPS[x.dtype])
    return f"(({ctx.render_type(x)})({ctx.code_for_op[x.op](*(f'({unsigned})({ctx[v]})' for v in x.src), x.dtype)}))"


def _with_subclasses(renderer: type[CStyleLanguage]) -> list[type[CStyleLanguage]]:
    return [renderer, *(found for subclass in renderer.__subclasses__() for found in _with_subclasses(subclass))]


def _defines(self: ClangRenderer, uops: list[UOp]) -> list[str]:
    return ["#pragma STDC FP_CONTRACT OFF", *_plain_defines(self, uops)]


_found = _arithmetic_rules()
assert [_names(rule) for rule in _found] == [names for names, _, _ in RULES], "tinygrad's rules have changed"
for _place, (_rule, (_, _what, _holds)) in enumerate(zip(_found, RULES, strict=True)):
    if not _holds:
        _keep_to_integers(_rule, _place)
    elif _what == "x * 1":
        _keep_types(_rule)
rules.fold_const_alu.__globals__["rules"] = rules
rules.fold_const_alu.__code__ = _folded.__code__

_integers = PatternMatcher(
    [
        (UPat.cvar("c").cast(dtypes.int64), _least_long),
        (UPat(tuple(UNSIGNED_ALIKE), tuple(WRAPS), name="x"), _wrapped),
    ]
)
cstyle.base_rewrite = _integers + cstyle.base_rewrite
_plain_render = CStyleLanguage._render
CStyleLanguage._render = _render
_plain_late_rules = codegen.get_late_rewrite_patterns
_plain_defines = ClangRenderer._render_defines
codegen.get_late_rewrite_patterns = _late_rules
ClangRenderer._render_defines = _defines
for _renderer in _with_subclasses(CStyleLanguage):
    _renderer.code_for_op = {**_renderer.code_for_op, Ops.NEG: _negative}
    if "string_rewrite" in vars(_renderer):
        _renderer.string_rewrite = _integers + _renderer.string_rewrite
ClangRenderer.code_for_op = {**ClangRenderer.code_for_op, Ops.MULACC: _fma("__builtin_fma", "__builtin_fmaf")}
CUDARenderer.code_for_op = {**CUDARenderer.code_for_op, Ops.MULACC: _fma("fma", "fmaf")}
