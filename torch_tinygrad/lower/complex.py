"""Complex numbers as pairs of real tensors: tinygrad has no complex dtype. In memory a complex region is the region of
its parts, one dimension longer; in lowerings it is a `Complex`, whose parts fuse like any other tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

from torch_tinygrad.trace.nodes import Node, reads

from . import maths as m
from .registry import LOWERINGS, Lowering, is_number, lowers
from .trigonometry import atan2, hypot

COMPLEX_LOWERINGS: dict[str, Lowering] = {}
# Registers lowerings for nodes that read or write complex regions: functions of Complex, Tensor and numbers (which may
# be complex) to Complex or Tensor. `meta.tiny` is the dtype of the parts.
lowers_complex = functools.partial(lowers, table=COMPLEX_LOWERINGS)


@dataclass(frozen=True)
class Complex:
    """A complex tensor: parts of the same shape and dtype."""

    re: Tensor
    im: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.re.shape)

    @property
    def ndim(self) -> int:
        return self.re.ndim

    @property
    def dtype(self) -> DType:
        """The dtype of the parts."""
        return self.re.dtype

    def map(self, function: Callable[[Tensor], Tensor]) -> Complex:
        """The same function of both parts."""
        return Complex(function(self.re), function(self.im))

    def cast(self, dtype: DType) -> Complex:
        return self.map(lambda part: part.cast(dtype))

    def expand(self, *shape) -> Complex:
        return self.map(lambda part: part.expand(*shape))

    def conj(self) -> Complex:
        return Complex(self.re, -self.im)

    def times_i(self) -> Complex:
        return Complex(-self.im, self.re)

    def over_i(self) -> Complex:
        return Complex(self.im, -self.re)

    def abs(self) -> Tensor:
        return hypot(self.re, self.im)

    def angle(self) -> Tensor:
        return atan2(self.im, self.re)

    def nonzero(self) -> Tensor:
        return self.re.ne(0) | self.im.ne(0)

    def eq(self, other: Complex) -> Tensor:
        return self.re.eq(other.re) & self.im.eq(other.im)

    def chosen(self, condition: Tensor, other: Complex) -> Complex:
        """This where the condition holds, the other elsewhere."""
        return Complex(condition.where(self.re, other.re), condition.where(self.im, other.im))

    def __neg__(self) -> Complex:
        return self.map(lambda part: -part)

    def __add__(self, other: Complex | Tensor | float) -> Complex:
        if not isinstance(other, Complex):
            return Complex(self.re + other, self.im)
        return Complex(self.re + other.re, self.im + other.im)

    def __sub__(self, other: Complex | Tensor | float) -> Complex:
        return self + -other

    def __mul__(self, other: Complex | Tensor | float) -> Complex:
        if not isinstance(other, Complex):
            return self.map(lambda part: part * other)
        return Complex(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)

    def __truediv__(self, other: Complex) -> Complex:
        """Smith's method: scaled by the divisor's larger part, so that squares neither overflow nor vanish."""
        wide = m.greater_equal(m.absolute(other.re), m.absolute(other.im))
        large, small = wide.where(other.re, other.im), wide.where(other.im, other.re)
        ratio = large.eq(0).where(0.0, small / large)
        whole = large + small * ratio
        re = wide.where(self.re + self.im * ratio, self.re * ratio + self.im)
        im = wide.where(self.im - self.re * ratio, self.im * ratio - self.re)
        return Complex(re / whole, im / whole)


def is_complex_number(value) -> bool:
    return is_number(value) or isinstance(value, complex)


def as_complex(value, dtype: DType | None = None) -> Complex:
    """A complex or real tensor or number, as a Complex with parts of `dtype`."""
    if isinstance(value, Complex):
        return value if dtype is None else value.cast(dtype)
    if isinstance(value, Tensor):
        re = value if dtype is None else value.cast(dtype)
        return Complex(re, m.constant(0, re.dtype, tuple(re.shape)))
    number = complex(value)
    dtype = dtype or dtypes.float32
    return Complex(m.constant(number.real, dtype), m.constant(number.imag, dtype))


# ---- in memory ----


def joined(z: Complex) -> Tensor:
    """Real and imaginary part side by side in a new last dimension."""
    place = m.index_range(2)
    return place.eq(0).where(z.re.unsqueeze(-1), z.im.unsqueeze(-1))


def split(pairs: Tensor) -> Complex:
    """The inverse of `joined`."""
    window = tuple((0, s) for s in pairs.shape[:-1])
    return Complex(*(pairs.shrink((*window, (i, i + 1))).squeeze(-1) for i in range(2)))


def touches_complex(node: Node) -> bool:
    return any(r.dtype.is_complex for r in (*node.outs, *reads(node)) if r is not None)


def lowering_of(node: Node) -> Lowering | None:
    """The lowering of a node, from the table of its kind of numbers."""
    return (COMPLEX_LOWERINGS if touches_complex(node) else LOWERINGS).get(node.op)
