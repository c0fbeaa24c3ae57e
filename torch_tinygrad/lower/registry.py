"""The table of lowerings: which function computes which aten operator on tinygrad tensors.

A lowering is a pure function from tinygrad values to tinygrad values. It receives the operator's arguments in schema
order (keyword-only ones as keywords, when it names them) and returns one tensor or a tuple of them. Shapes and dtypes
of the results were already inferred by PyTorch: the caller casts to them, so a lowering is only the mathematics.

What an argument looks like:
- a tensor: a `tinygrad.Tensor` of the same shape and dtype; a tensor list: a list of them; an absent one: `None`
- a number, or a 0-dim CPU tensor mixed in: a Python number, or a 0-dim `tinygrad.Tensor` for the arguments that the
  registration names in `lifts` (the program then takes the number as an input and needs no recompile when it changes)
- everything else (ints, bools, strings, dtypes, lists): the Python value

Two names are filled in by the caller when a lowering asks for them: `meta` (a tuple of `Meta`, what PyTorch inferred
for the results) and `rng` (a `Random`, for random operators).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

TO_TINY: dict[torch.dtype, DType] = {
    torch.bool: dtypes.bool,
    torch.uint8: dtypes.uint8,
    torch.int8: dtypes.int8,
    torch.int16: dtypes.int16,
    torch.int32: dtypes.int32,
    torch.int64: dtypes.int64,
    torch.uint16: dtypes.uint16,
    torch.uint32: dtypes.uint32,
    torch.uint64: dtypes.uint64,
    torch.float16: dtypes.float16,
    torch.bfloat16: dtypes.bfloat16,
    torch.float32: dtypes.float32,
    torch.float64: dtypes.float64,
}
TO_TORCH: dict[DType, torch.dtype] = {tiny: t for t, tiny in TO_TINY.items()}
# Complex numbers are pairs of these.
PART_OF: dict[torch.dtype, torch.dtype] = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


@dataclass(frozen=True)
class Meta:
    """What PyTorch inferred for one result."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def tiny(self) -> DType:
        """In tinygrad's terms; of a complex dtype, that of its parts."""
        return TO_TINY[PART_OF.get(self.dtype, self.dtype)]


@dataclass(frozen=True)
class Lowering:
    """One entry of the table."""

    function: Callable
    lifts: frozenset[str] = frozenset()
    fuses: bool = False  # not pointwise, and yet computed inside the kernels that read it
    reads_twice: bool = False  # reads its argument once for statistics and again for the result
    keywords: frozenset[str] = field(default_factory=frozenset)
    takes_all: bool = False

    def __call__(self, positional: list, keyword: dict, **extra):
        """Calls the function with what it names: keyword-only schema arguments it leaves out are dropped."""
        offered = {**keyword, **extra}
        named = {k: v for k, v in offered.items() if self.takes_all or k in self.keywords}
        return self.function(*positional, **named)


@dataclass(frozen=True)
class SideBySide:
    """A lowering's result that is several tensors of one shape, along the last dimension."""

    values: tuple[Tensor, ...]

    def cast(self, dtype: DType) -> SideBySide:
        return SideBySide(tuple(value.cast(dtype) for value in self.values))

    def cat(self) -> Tensor:
        return self.values[0].cat(*self.values[1:], dim=-1)


LOWERINGS: dict[str, Lowering] = {}


def name_of(overload: torch._ops.OpOverload) -> str:
    """The dispatcher's name: `aten::add.Tensor`, or `aten::relu` where the overload has none."""
    schema = overload._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def lowers(
    *overloads: torch._ops.OpOverload,
    lifts: tuple[str, ...] = (),
    fuses: bool = False,
    reads_twice: bool = False,
    table: dict[str, Lowering] = LOWERINGS,
):
    """Registers the decorated function as the lowering of these overloads (functional forms only: in-place, `out=` and
    foreach forms of the same operator are derived from it)."""

    def register(function: Callable) -> Callable:
        parameters = inspect.signature(function).parameters.values()
        keywords = frozenset(p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        for overload in overloads:
            name = name_of(overload)
            assert name not in table, f"{name} has two lowerings"
            table[name] = Lowering(function, frozenset(lifts), fuses, reads_twice, keywords, takes_all)
        return function

    return register


def is_number(value) -> bool:
    """Whether an argument is a plain number rather than a tensor."""
    return isinstance(value, (bool, int, float))


def result_dtype(*values) -> DType:
    """PyTorch's promotion of tensors and numbers (0-dim tensors and numbers only promote across kinds)."""
    metas = [
        torch.empty((0,) * min(v.ndim, 1), dtype=TO_TORCH[v.dtype], device="meta")
        for v in values
        if isinstance(v, Tensor)
    ]
    return TO_TINY[_result_type([*metas, *(v for v in values if is_number(v))])]


def _result_type(values: list) -> torch.dtype:
    dim = [v for v in values if isinstance(v, torch.Tensor) and v.ndim]
    zero = [v for v in values if isinstance(v, torch.Tensor) and not v.ndim]
    numbers = [v for v in values if not isinstance(v, torch.Tensor)]

    def join(dtypes_):
        out = None
        for d in dtypes_:
            out = d if out is None else torch.promote_types(out, d)
        return out

    def kind(d):
        return 3 if d.is_complex else 2 if d.is_floating_point else 0 if d is torch.bool else 1

    result = join([v.dtype for v in dim])
    lower = join([v.dtype for v in zero])
    if result is None or (lower is not None and kind(lower) > kind(result)):
        result = lower if result is None else torch.promote_types(result, lower)
    for number in numbers:
        d = (
            torch.bool
            if isinstance(number, bool)
            else torch.int64
            if isinstance(number, int)
            else torch.get_default_dtype()
        )
        if result is None or kind(d) > kind(result):
            result = d
    return result
