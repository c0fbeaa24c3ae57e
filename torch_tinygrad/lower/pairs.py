"""Numbers as unevaluated sums of two floats, for the steps of a function in which one float's digits do not do; and the
same steps in one float, `Plain`, for results that need no more: functions of float32 computed in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tinygrad import Tensor
from tinygrad.dtype import DType

from .maths import constant, fma


@dataclass(frozen=True)
class Pair:
    """high + low, where high is the sum rounded."""

    high: Tensor
    low: Tensor

    @classmethod
    def of(cls, high: Tensor, low: Tensor) -> Self:
        return cls(high, low)

    @classmethod
    def single(cls, x: Tensor) -> Self:
        return cls.of(x, constant(0.0, x.dtype))

    @classmethod
    def sum(cls, a: Tensor, b: Tensor) -> Pair:
        return exact_sum(a, b)

    @classmethod
    def product(cls, a: Tensor, b: Tensor) -> Pair:
        return exact_product(a, b)

    def __neg__(self) -> Pair:
        return Pair(-self.high, -self.low)

    def __add__(self, other: Pair) -> Pair:
        total = exact_sum(self.high, other.high)
        return joined(total.high, total.low + (self.low + other.low))

    def __sub__(self, other: Pair) -> Pair:
        return self + -other

    def __mul__(self, other: Pair) -> Pair:
        product = exact_product(self.high, other.high)
        return joined(product.high, fma(self.high, other.low, fma(self.low, other.high, product.low)))

    def times(self, x: Tensor) -> Pair:
        product = exact_product(self.high, x)
        return joined(product.high, fma(self.low, x, product.low))

    def __truediv__(self, other: Pair) -> Pair:
        quotient = self.high / other.high
        rest = fma(-quotient, other.high, self.high) + fma(-quotient, other.low, self.low)
        return joined(quotient, rest / other.high)

    def sqrt(self) -> Pair:
        root = self.high.sqrt()
        rest = fma(-root, root, self.high) + self.low
        return joined(root, self.high.eq(0).where(0.0, rest / (root + root)))

    def scaled(self, factor: float) -> Pair:
        """Times a power of two."""
        return Pair(self.high * factor, self.low * factor)

    def where(self, condition: Tensor, other: Pair) -> Pair:
        """This where the condition holds, else the other."""
        return type(self)(condition.where(self.high, other.high), condition.where(self.low, other.low))

    @property
    def rounded(self) -> Tensor:
        return self.high + self.low


class Plain(Pair):
    """A number in one float."""

    def __init__(self, high: Tensor, low: Tensor | None = None):
        super().__init__(high, constant(0.0, high.dtype))

    @classmethod
    def sum(cls, a: Tensor, b: Tensor) -> Pair:
        return cls(a + b)

    @classmethod
    def product(cls, a: Tensor, b: Tensor) -> Pair:
        return cls(a * b)

    def __neg__(self) -> Pair:
        return Plain(-self.high)

    def __add__(self, other: Pair) -> Pair:
        return Plain(self.high + other.high)

    def __mul__(self, other: Pair) -> Pair:
        return Plain(self.high * other.high)

    def times(self, x: Tensor) -> Pair:
        return Plain(self.high * x)

    def __truediv__(self, other: Pair) -> Pair:
        return Plain(self.high / other.high)

    def sqrt(self) -> Pair:
        return Plain(self.high.sqrt())

    def scaled(self, factor: float) -> Pair:
        return Plain(self.high * factor)

    @property
    def rounded(self) -> Tensor:
        return self.high


def joined(high: Tensor, low: Tensor) -> Pair:
    """high + low where high is the greater."""
    total = high + low
    return Pair(total, low - (total - high))


def exact_sum(a: Tensor, b: Tensor) -> Pair:
    total = a + b
    of_b = total - a
    return Pair(total, (a - (total - of_b)) + (b - of_b))


def exact_product(a: Tensor, b: Tensor) -> Pair:
    product = a * b
    return Pair(product, fma(a, b, -product))


def single(x: Tensor) -> Pair:
    return Pair.single(x)


def number(high: float, low: float, dtype: DType) -> Pair:
    return Pair(constant(high, dtype), constant(low, dtype))
