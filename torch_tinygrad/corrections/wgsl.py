"""Short integers on WebGPU, whose shaders know those of 32 bits alone: corrections of what tinygrad writes for them.
Long ones are pairs: `pairs.py`."""

from __future__ import annotations

from tinygrad.dtype import dtypes
from tinygrad.renderer import wgsl
from tinygrad.renderer.wgsl import WGSLRenderer
from tinygrad.uop.ops import GroupOp, Ops, PatternMatcher, UOp, UPat

from .registry import correction

# What cuts 32 bits down to a type's own, with its sign.
WRAPS = {
    dtypes.uint8: "({}&0xFFu)",
    dtypes.uint16: "({}&0xFFFFu)",
    dtypes.int8: "((({})<<24u)>>24u)",
    dtypes.int16: "((({})<<16u)>>16u)",
}
# These leave a number of the type what it is.
KEEPING = {Ops.WHERE, Ops.AND, Ops.OR, Ops.MAX}


@correction("0.14.0", "device/test_own_memory.py::test_short_integers_wrap_before_they_are_used")
def short_integers_wrap() -> None:
    """Short integers keep all bits of the 32 that they are computed with, until they are stored."""
    written = PatternMatcher(
        [
            (UPat(Ops.CAST, tuple(WRAPS), src=(UPat(GroupOp.All - {Ops.CONST}),), name="x"), _cast),
            (UPat(GroupOp.ALU, tuple(WRAPS), name="x"), _arithmetic),
        ]
    )
    WGSLRenderer.string_rewrite = written + WGSLRenderer.string_rewrite


@correction("0.14.0", "device/test_own_memory.py::test_short_integers_wrap_before_they_are_used")
def short_integers_are_stored_as_their_bits() -> None:
    """What is packed into a word is cut to the type's bits among the short type's own numbers, where 255 is -1."""
    first = PatternMatcher([(UPat(Ops.STORE, name="store"), _packed_store)])
    WGSLRenderer.extra_matcher = first + wgsl.wgsl_matcher


def _cast(ctx: WGSLRenderer, x: UOp) -> str:
    value, wide = ctx[x.src[0]], ctx.type_map[x.dtype]
    if x.src[0].dtype in dtypes.floats:
        value = f"i32({value})"  # negative numbers wrap, too
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
