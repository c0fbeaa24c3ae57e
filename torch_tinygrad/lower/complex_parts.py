"""Operators on complex numbers that are operators on reals: movement, selection and sums work on each part, and truth
is a question about both."""

from __future__ import annotations

import torch
from tinygrad import Tensor

from torch_tinygrad.kernels.updates import settled

from .complex import COMPLEX_LOWERINGS, Complex, is_complex_number
from .registry import LOWERINGS, PART_OF, Lowering, Meta

aten = torch.ops.aten

# Arguments that hold values, by the names schemas give them: the others are places and masks, the same for both parts.
VALUES = frozenset(
    (
        "self",
        "input",
        "other",
        "tensors",
        "src",
        "source",
        "value",
        "values",
        "grad",
        "grad_in",
        "grad_output",
        "weight",
    )
)
LIFTS = frozenset(("value", "alpha"))

COMPONENTWISE = """
cat stack _stack block_diag repeat flip roll rot90 tril triu
diagonal_copy diagonal_scatter diagonal_backward diag_embed
slice_scatter slice_backward select_scatter select_backward
_unsafe_view _reshape_copy view_copy squeeze_copy squeeze_copy.dim squeeze_copy.dims unsqueeze_copy
alias_copy detach_copy lift_fresh_copy expand_copy permute_copy transpose_copy.int t_copy slice_copy.Tensor narrow_copy
select_copy.int unbind_copy.int split_copy.Tensor split_with_sizes_copy unfold_copy unfold_backward
constant_pad_nd reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward
reflection_pad3d reflection_pad3d_backward replication_pad1d replication_pad1d_backward
replication_pad2d replication_pad2d_backward replication_pad3d replication_pad3d_backward
pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im embedding embedding_dense_backward
index.Tensor _unsafe_index.Tensor masked_select index_select take gather
scatter.src scatter.value scatter_add index_add index_copy index_fill.int_Scalar index_fill.int_Tensor
put index_put _unsafe_index_put _index_put_impl masked_scatter masked_scatter_backward
where.self masked_fill.Scalar masked_fill.Tensor
sum sum.dim_IntList mean mean.dim cumsum trace
""".split()

# Questions about which elements are nonzero.
TRUTH = """
any any.dim any.dims all all.dim all.dims count_nonzero count_nonzero.dim_IntList nonzero nonzero_static
logical_and logical_or logical_xor
""".split()


def _names(op: str) -> list[str]:
    name, _, overload = op.partition(".")
    return [a.name for a in getattr(getattr(aten, name), overload or "default")._schema.arguments]


def _part(value, index: int):
    """A part of an argument: reals have none beside the first."""
    if isinstance(value, (list, tuple)):
        return [_part(v, index) for v in value]
    if isinstance(value, Tensor) or is_complex_number(value):
        if isinstance(value, complex):
            return (value.real, value.imag)[index]
        return value if index == 0 else value.const_like(0) if isinstance(value, Tensor) else 0
    return (value.re, value.im)[index] if isinstance(value, Complex) else value


def _componentwise(op: str) -> Lowering:
    names = _names(op)

    def lower(*positional, meta, **keyword):
        real, results = LOWERINGS[f"aten::{op}"], []
        metas = tuple(m and Meta(m.shape, PART_OF.get(m.dtype, m.dtype)) for m in meta)
        for index in range(2):
            values = [_part(v, index) if n in VALUES else v for n, v in zip(names, positional, strict=False)]
            named = {n: _part(v, index) if n in VALUES else v for n, v in keyword.items()}
            results.append(settled(real(values, named, meta=metas)))
        if isinstance(results[0], (tuple, list)):
            return tuple(Complex(re, im) for re, im in zip(*results, strict=True))
        return Complex(*results)

    return Lowering(lower, LIFTS, takes_all=True)


def _truth(op: str) -> Lowering:
    def lower(*positional, meta, **keyword):
        values = [v.nonzero() if isinstance(v, Complex) else v for v in positional]
        return LOWERINGS[f"aten::{op}"](values, keyword, meta=meta)

    return Lowering(lower, takes_all=True)


COMPLEX_LOWERINGS.update({f"aten::{op}": _componentwise(op) for op in COMPONENTWISE})
COMPLEX_LOWERINGS.update({f"aten::{op}": _truth(op) for op in TRUTH})
