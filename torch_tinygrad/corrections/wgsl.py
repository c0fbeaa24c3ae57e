"""What tinygrad writes for WebGPU, corrected: short integers, as its shaders know those of 32 bits alone (long ones are
pairs: `pairs.py`), and what becomes of nan and infinities."""

from __future__ import annotations

import math
from collections.abc import Callable

from tinygrad.dtype import dtypes
from tinygrad.renderer import wgsl
from tinygrad.renderer.wgsl import WGSLRenderer
from tinygrad.uop.ops import GroupOp, Ops, PatternMatcher, UOp, UPat

from .registry import correction, wrap

# What cuts 32 bits down to a type's own, with its sign.
WRAPS = {
    dtypes.uint8: "({}&0xFFu)",
    dtypes.uint16: "({}&0xFFFFu)",
    dtypes.int8: "((({})<<24u)>>24u)",
    dtypes.int16: "((({})<<16u)>>16u)",
}
FLOATS = (dtypes.float32, dtypes.float16)
# These leave a number of the type what it is.
KEEPING = {Ops.WHERE, Ops.AND, Ops.OR, Ops.MAX}


@correction("0.14.0", "device/test_own_memory.py::test_short_integers_wrap_before_they_are_used", device="WEBGPU")
def short_integers_wrap() -> None:
    """Short integers keep all bits of the 32 that they are computed with, until they are stored."""
    written = PatternMatcher(
        [
            (UPat(Ops.CAST, tuple(WRAPS), src=(UPat(GroupOp.All - {Ops.CONST}),), name="x"), _cast),
            (UPat(GroupOp.ALU, tuple(WRAPS), name="x"), _arithmetic),
        ]
    )
    WGSLRenderer.string_rewrite = written + WGSLRenderer.string_rewrite


@correction("0.14.0", "device/test_own_memory.py::test_short_integers_wrap_before_they_are_used", device="WEBGPU")
def short_integers_are_stored_as_their_bits() -> None:
    """What is packed into a word is cut to the type's bits among the short type's own numbers, where 255 is -1."""
    first = PatternMatcher([(UPat(Ops.STORE, name="store"), _packed_store)])
    WGSLRenderer.extra_matcher = first + WGSLRenderer.extra_matcher


@correction(
    "0.14.0", "operators/test_integers.py::test_floats_without_an_integer_convert_as_on_the_cpu", device="WEBGPU"
)
def floats_without_an_integer_convert_as_on_the_cpu() -> None:
    """WGSL's conversions of nan are any number, others end at the bounds of 32 bits, where a processor gives the least
    integer, and negative numbers are 0 where they are to be unsigned."""
    number = UPat.var("number", FLOATS)
    written = PatternMatcher(
        [
            (number.cast(dtypes.int32), lambda ctx, number: f"whole(f32({ctx[number]}))"),
            (number.cast(dtypes.uint32), lambda ctx, number: f"unsigned_whole(f32({ctx[number]}))"),
        ]
    )
    WGSLRenderer.string_rewrite = written + WGSLRenderer.string_rewrite
    wrap(WGSLRenderer, "render_kernel", _with_whole_numbers)


WHOLE = """fn whole(x: f32) -> i32 { return select(i32(-2147483648), i32(x), abs(x) < 2147483648.0); }
fn unsigned_whole(x: f32) -> u32 { return select(bitcast<u32>(whole(x)), u32(x), x >= 0.0); }
"""


def _with_whole_numbers(plain: Callable) -> Callable:
    def render_kernel(self: WGSLRenderer, *args, **options) -> str:
        text = plain(self, *args, **options)
        return text.replace("fn nan()", f"{WHOLE}fn nan()", 1) if "whole(" in text else text

    return render_kernel


@correction("0.14.0", "device/test_own_memory.py::test_bits_of_halves_as_integers_have_a_sign", device="WEBGPU")
def bits_of_halves_have_a_sign() -> None:
    """The bits of a half that a kernel computed, as an int16, were the lower ones of 32: those of -1.0 were 48128."""
    half = UPat.var("half", dtypes.float16)
    written = PatternMatcher([(half.bitcast(dtypes.int16), _bits_of_half)])
    WGSLRenderer.string_rewrite = written + WGSLRenderer.string_rewrite


def _bits_of_half(ctx: WGSLRenderer, half: UOp) -> str:
    return WRAPS[dtypes.int16].format(f"bitcast<i32>(vec2<f16>({ctx[half]},0))")


@correction("0.14.0", "device/test_own_memory.py::test_short_integers_that_are_read_conditionally", device="WEBGPU")
def what_is_read_instead_is_no_part_of_a_word() -> None:
    """A short integer that is read where a condition holds is cut out of its word, and what stands for it elsewhere is
    cut in the same way, though it is the number itself: every second element of a rolled image was 0."""
    first = PatternMatcher([(UPat(Ops.LOAD, name="load"), _packed_load)])
    WGSLRenderer.extra_matcher = first + WGSLRenderer.extra_matcher


def _packed_load(load: UOp) -> UOp | None:
    if len(load.src) < 3 or not wgsl.is_packed(load):
        return None
    place, instead, condition = load.src
    nothing = UOp.const(0, load.dtype)
    return condition.where(wgsl.packed_load(load.replace(src=(place, nothing, condition))), instead)


def _cast(ctx: WGSLRenderer, x: UOp) -> str:
    value, wide = ctx[x.src[0]], ctx.type_map[x.dtype]
    if x.src[0].dtype in dtypes.floats:
        value = f"whole(f32({value}))"  # negative numbers wrap, too
    return WRAPS[x.dtype].format(f"{wide}({value})")


def _arithmetic(ctx: WGSLRenderer, x: UOp) -> str | None:
    if x.op in KEEPING:
        return None
    return WRAPS[x.dtype].format(ctx.code_for_op[x.op](*(ctx[v] for v in x.src), x.dtype))


def _packed_store(store: UOp) -> UOp | None:
    """As tinygrad's, but cut to the type's bits as 32 bits."""
    if not wgsl.is_packed(store):
        return None
    place, value, *gate = store.src
    word, shift, mask = wgsl.packed_field(place, value.dtype)
    kept = (UOp.const(mask, dtypes.uint32) << shift) ^ UOp.const(0xFFFFFFFF, dtypes.uint32)
    bits = (value.cast(dtypes.int32) & UOp.const(mask, dtypes.int32)).cast(dtypes.uint32) << shift
    old = word.load(*((UOp.const(0, dtypes.uint32), *gate) if gate else ()), dtype=dtypes.uint32)
    return word.store((old & kept) | bits, *gate)


@correction(
    "0.14.0", "operators/test_operators.py::test_the_largest_and_the_least_of_numbers_with_nan_are_nan", device="WEBGPU"
)
def nan_is_positive() -> None:
    """The sign of tinygrad's nan is set: among numbers ordered by their bits it is the least, not the largest."""
    wrap(WGSLRenderer, "render_kernel", _with_positive_nan)


def _with_positive_nan(plain: Callable) -> Callable:
    def render_kernel(self: WGSLRenderer, *args, **options) -> str:
        text = plain(self, *args, **options)
        if NEGATIVE_NAN not in text:
            raise AttributeError("nan is written in another way")
        return text.replace(NEGATIVE_NAN, "let bits = 0x7fc00000u;", 1)

    return render_kernel


NEGATIVE_NAN = "let bits = 0xffffffffu;"
# A number that drivers do not know.
ZERO = "(1.0/INFINITY)"


@correction("0.14.0", "operators/test_operators.py::test_comparisons_with_nan", device="WEBGPU")
def nan_differs_from_every_number() -> None:
    """WGSL's != is false where one of the two is nan."""
    pair = UPat(Ops.CMPNE, name="c", src=(UPat(dtype=FLOATS), UPat()))
    written = PatternMatcher([(pair, lambda ctx, c: f"(!({ctx[c.src[0]]}=={ctx[c.src[1]]}))")])
    WGSLRenderer.string_rewrite = written + WGSLRenderer.string_rewrite


@correction("0.14.0", "operators/test_operators.py::test_a_factor_of_zero_keeps_nan_and_infinity", device="WEBGPU")
def products_with_nothing_are_computed() -> None:
    """Drivers of WebGPU take x * 0 and x - x for 0, whatever x is."""
    x = UPat(name="x", dtype=FLOATS)
    written = PatternMatcher(
        [
            (UPat(Ops.MUL, FLOATS, src=(x, UPat.cvar("c").cast(FLOATS))), _times_zero),
            (UPat(Ops.MUL, FLOATS, src=(UPat.cvar("c").cast(FLOATS), x)), _times_zero),
            (UPat(Ops.SUB, FLOATS, src=(x, x)), _less_itself),
        ]
    )
    WGSLRenderer.string_rewrite = written + WGSLRenderer.string_rewrite


def _times_zero(ctx: WGSLRenderer, x: UOp, c: UOp) -> str | None:
    if c.val != 0:
        return None
    sign = "-" if math.copysign(1.0, c.val) < 0 else ""
    return f"({ctx[x]}*{sign}{ctx.type_map[x.dtype]}{ZERO})"


def _less_itself(ctx: WGSLRenderer, x: UOp) -> str:
    return f"(abs({ctx[x]})*{ctx.type_map[x.dtype]}{ZERO})"
