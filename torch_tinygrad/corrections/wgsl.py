"""Short integers on WebGPU, whose shaders know those of 32 bits alone: corrections of what tinygrad writes for them.
Long ones are pairs: `pairs.py`. Applied with the other corrections (`fixes.py`)."""

from __future__ import annotations

from tinygrad.dtype import dtypes
from tinygrad.renderer import wgsl
from tinygrad.renderer.wgsl import WGSLRenderer
from tinygrad.uop.ops import GroupOp, Ops, PatternMatcher, UOp, UPat

# What cuts 32 bits down to a type's own, with its sign.
WRAPS = {
    dtypes.uint8: "({}&0xFFu)",
    dtypes.uint16: "({}&0xFFFFu)",
    dtypes.int8: "((({})<<24u)>>24u)",
    dtypes.int16: "((({})<<16u)>>16u)",
}
# These leave a number of the type what it is.
KEEPING = {Ops.WHERE, Ops.AND, Ops.OR, Ops.MAX}


def _cast(ctx: WGSLRenderer, x: UOp) -> str:
    """A conversion to a short type wraps. Without this it keeps all bits until they are stored."""
    value, wide = ctx[x.src[0]], ctx.type_map[x.dtype]
    if x.src[0].dtype in dtypes.floats:
        value = f"i32({value})"  # negative numbers wrap, too
    return WRAPS[x.dtype].format(f"{wide}({value})")


def _arithmetic(ctx: WGSLRenderer, x: UOp) -> str | None:
    if x.op in KEEPING:
        return None
    return WRAPS[x.dtype].format(ctx.code_for_op[x.op](*(ctx[v] for v in x.src), x.dtype))


def _packed_store(store: UOp) -> UOp | None:
    """As tinygrad's, but cut to the type's bits as 32 bits: 255 is -1 among the short type's own numbers."""
    if not wgsl.is_packed(store):
        return None
    place, value, *gate = store.src
    word, shift, mask = wgsl.packed_field(place, value.dtype)
    kept = (UOp.const(mask, dtypes.uint32) << shift) ^ UOp.const(0xFFFFFFFF, dtypes.uint32)
    bits = (value.cast(dtypes.int32) & UOp.const(mask, dtypes.int32)).cast(dtypes.uint32) << shift
    old = word.load(*((UOp.const(0, dtypes.uint32), *gate) if gate else ()), dtype=dtypes.uint32)
    return word.store((old & kept) | bits, *gate)


_rules = PatternMatcher(
    [
        (UPat(Ops.CAST, tuple(WRAPS), src=(UPat(GroupOp.All - {Ops.CONST}),), name="x"), _cast),
        (UPat(GroupOp.ALU, tuple(WRAPS), name="x"), _arithmetic),
    ]
)


def apply() -> None:
    """Safe to call more than once."""
    if WGSLRenderer.extra_matcher is wgsl.wgsl_matcher:
        WGSLRenderer.extra_matcher = (
            PatternMatcher([(UPat(Ops.STORE, name="store"), _packed_store)]) + wgsl.wgsl_matcher
        )
        WGSLRenderer.string_rewrite = _rules + WGSLRenderer.string_rewrite
