"""What tinygrad writes as C."""

from __future__ import annotations

from collections.abc import Callable

from tinygrad.dtype import DType, dtypes
from tinygrad.renderer import cstyle
from tinygrad.renderer.cstyle import ClangRenderer, CStyleLanguage, CUDARenderer, OpenCLRenderer
from tinygrad.renderer.wgsl import WGSLRenderer
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat

from .registry import correction, wrap

UNSIGNED_ALIKE = {Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG, Ops.SHL}  # the same bits, signed or not
WRAPS = {dtypes.int32: dtypes.uint32, dtypes.int64: dtypes.uint64}
SHORT = (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16)


def _with_subclasses(renderer: type[CStyleLanguage]) -> list[type[CStyleLanguage]]:
    return [renderer, *(found for subclass in renderer.__subclasses__() for found in _with_subclasses(subclass))]


def _write_first(first: PatternMatcher) -> None:
    """Rules before those of every language that looks like C."""
    cstyle.base_rewrite = first + cstyle.base_rewrite
    for renderer in _with_subclasses(CStyleLanguage):
        if "string_rewrite" in vars(renderer):
            renderer.string_rewrite = first + renderer.string_rewrite


@correction("0.14.0", "engine/test_corrections.py::test_negative_numbers_are_written_in_brackets")
def negative_numbers_are_written_in_brackets() -> None:
    """C reads a - -b without them as a decrement, and such differences are not simplified any more."""
    for renderer in _with_subclasses(CStyleLanguage):
        renderer.code_for_op = {**renderer.code_for_op, Ops.NEG: _negative}


def _negative(x: str, dtype: DType) -> str:
    return f"(-{x})"


@correction("0.14.0", "operators/test_numbers_exact.py::test_brackets_are_kept")
def brackets_of_floats_are_kept() -> None:
    """a * (b * c) is written without them, and a compiler multiplies from the left: other roundings, and numbers where
    b * c is infinite."""
    rule = (UPat((Ops.ADD, Ops.MUL), dtypes.floats, src=(UPat.var("a"), UPat.var("b")), name="x"), _in_order)
    _write_first(PatternMatcher([rule]))


def _in_order(ctx: CStyleLanguage, x: UOp, a: UOp, b: UOp) -> str | None:
    return ctx.code_for_op[x.op](ctx[a], ctx[b], x.dtype) if b.op is x.op else None


@correction("0.14.0", "engine/test_corrections.py::test_what_a_lowering_rounds_once_is_rounded_once")
def fused_products_are_written_as_such() -> None:
    """tinygrad has no C for a MULACC on the CPU, on CUDA, in OpenCL: what a lowering rounds once is rounded twice."""
    fused = {ClangRenderer: _fma("__builtin_fma", "__builtin_fmaf"), CUDARenderer: _fma("fma", "fmaf")}
    fused |= {renderer: _fma("fma", "fma") for renderer in _with_subclasses(OpenCLRenderer)}
    for renderer, write in fused.items():
        renderer.code_for_op = {**renderer.code_for_op, Ops.MULACC: write}


def _fma(double: str, single: str) -> Callable:
    def render(a: str, b: str, c: str, dtype: DType) -> str:
        return f"{double if dtype == dtypes.float64 else single}({a},{b},{c})"

    return render


@correction("0.14.0", "operators/test_numbers_exact.py::test_rounds_where_the_cpu_rounds", device="CL")
def quotients_are_written_as_such() -> None:
    """Everywhere but on the CPU a / b is written as a * (1 / b): rounded twice, and infinite where b is so small that
    its inverse is."""
    for renderer in _with_subclasses(CStyleLanguage):
        known = {op: write for op, write in renderer.code_for_op.items() if op is not Ops.RECIPROCAL}
        renderer.code_for_op = {**known, Ops.FDIV: _quotient}


def _quotient(a: str, b: str, dtype: DType) -> str:
    return f"({a}/{b})"


@correction(
    tinygrad="0.14.0",
    test="aliasing/test_findings.py::test_the_least_and_the_greatest_integer_compare_as_what_they_are",
)
def the_least_integer_is_signed() -> None:
    """C has no literal for the least int64: what looks like one is the negative of an unsigned number, and compares as
    unsigned."""
    _write_first(PatternMatcher([(UPat.cvar("c").cast(dtypes.int64), _least_long)]))


def _least_long(c: UOp) -> str | None:
    return f"({dtypes.int64.min + 1}l-1l)" if c.val == dtypes.int64.min else None


@correction("0.14.0", "engine/test_corrections.py::test_floats_without_an_integer_end_no_loop")
def floats_without_an_integer_are_converted() -> None:
    """What is no integer's value becomes anything in C, and a compiler that knows it, as in a loop over what was
    padded, may leave out whatever comes after a choice by it, the end of the loop before included. It is the least
    integer, as in PyTorch's kernels."""
    rule = (UPat(Ops.CAST, tuple(WRAPS), src=(UPat.var("x", dtypes.floats),), name="cast"), _converted)
    ClangRenderer.string_rewrite = PatternMatcher([rule]) + ClangRenderer.string_rewrite
    wrap(ClangRenderer, "_render_defines", _with_conversions)


def _converted(ctx: CStyleLanguage, cast: UOp, x: UOp) -> str | None:
    return f"{_conversion(x.dtype, cast.dtype)}({ctx[x]})" if cast.max_numel() == 1 else None


def _conversion(source: DType, to: DType) -> str:
    return f"{'long' if to == dtypes.int64 else 'int'}_of_{'double' if source == dtypes.float64 else 'float'}"


CONVERSION = """static inline {to} {name}({source} x) {{
  return ((x >= -{bound}) & (x < {bound})) ? ({to})x : {least};
}}"""


def _with_conversions(plain: Callable) -> Callable:
    def written(source: DType, to: DType) -> str:
        names = {"name": _conversion(source, to), "source": "double" if source == dtypes.float64 else "float"}
        bound, least = f"{2.0 ** (to.itemsize * 8 - 1):.1f}", f"(-{to.max}{'l' if to == dtypes.int64 else ''} - 1)"
        return CONVERSION.format(to="long" if to == dtypes.int64 else "int", bound=bound, least=least, **names)

    def render_defines(self: ClangRenderer, uops: list[UOp]) -> list[str]:
        casts = {(u.src[0].dtype, u.dtype) for u in uops if u.op is Ops.CAST and u.dtype in WRAPS}
        wide = {
            (dtypes.float64 if s == dtypes.float64 else dtypes.float32, to) for s, to in casts if s in dtypes.floats
        }
        return [*plain(self, uops), *sorted(written(*types) for types in wide)]

    return render_defines


@correction("0.14.0", "aliasing/test_findings.py::test_sums_and_products_of_integers_wrap_inside_a_kernel")
def integers_wrap_inside_a_kernel() -> None:
    """Signed numbers that overflow are undefined in C, and a compiler may assume that they do not: sums and products of
    values that were loaded do not wrap."""
    _write_first(PatternMatcher([(UPat(tuple(UNSIGNED_ALIKE), tuple(WRAPS), name="x"), _wrapped)]))
    wrap(CStyleLanguage, "_render", _render)


@correction("0.14.0", "operators/test_integers.py::test_short_integers_wrap_before_they_are_used")
def short_integers_wrap_before_they_are_used() -> None:
    """C computes with short integers as ints: what reads them in the same expression sees bits they do not have."""
    _write_first(PatternMatcher([(UPat(tuple(UNSIGNED_ALIKE), SHORT, name="x"), _cut)]))


def _cut(ctx: CStyleLanguage, x: UOp) -> str | None:
    return None if isinstance(ctx, WGSLRenderer) or x.max_numel() > 1 else _as_unsigned(ctx, x, dtypes.uint32)


def _wrapping(uops: list[UOp]) -> set[UOp]:
    """Sums and products of loaded integers that are values, not indices, which do not overflow, and rely on that."""
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


def _render(plain: Callable) -> Callable:
    def render(self: CStyleLanguage, uops: list[UOp]):
        self.wrapping = set() if isinstance(self, WGSLRenderer) else _wrapping(uops)  # whose integers wrap, and no C
        return plain(self, uops)

    return render


def _wrapped(ctx: CStyleLanguage, x: UOp) -> str | None:
    if x not in ctx.wrapping or x.max_numel() > 1:
        return None
    return _as_unsigned(ctx, x, WRAPS[x.dtype])


def _as_unsigned(ctx: CStyleLanguage, x: UOp, wide: DType) -> str:
    unsigned = ctx.render_dtype(wide)
    return f"(({ctx.render_type(x)})({ctx.code_for_op[x.op](*(f'({unsigned})({ctx[v]})' for v in x.src), x.dtype)}))"


@correction("0.14.0", "operators/test_numbers_exact.py::test_functions_of_a_number_that_is_nan")
def nan_is_a_number_that_the_compiler_does_not_know() -> None:
    """An integer of nan is undefined in C, and a compiler that knows the number makes anything of what is computed from
    one: x**nan was 1."""
    for renderer, written in NAN.items():
        renderer.nan = "nan_number"
        wrap(renderer, "_render", _with_nan(written))


# What comes out of an empty piece of assembly is not known; nor, where there is none, what memory holds that others
# might write.
NAN = {
    ClangRenderer: """  unsigned int nan_bits = 0x7fc00000u;
  __asm__("" : "+r"(nan_bits));
  const float nan_number = ((union { unsigned int bits; float number; }){nan_bits}).number;""",
    OpenCLRenderer: """  volatile unsigned int nan_bits = 0x7fc00000u;
  const float nan_number = as_float(nan_bits);""",
}


def _with_nan(written: str) -> Callable:
    def around(plain: Callable) -> Callable:
        def render(self: CStyleLanguage, uops: list[UOp]):
            name, lines, *rest = plain(self, uops)
            return (name, [written, *lines] if any(self.nan in line for line in lines) else lines, *rest)

        return render

    return around
