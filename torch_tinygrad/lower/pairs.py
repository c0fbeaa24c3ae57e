"""Numbers as unevaluated sums of two floats, for the few steps of a function in which one float's digits do not do."""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor
from tinygrad.dtype import DType

from .maths import constant, fma


@dataclass(frozen=True)
class Pair:
    """high + low, where high is the sum rounded."""

    high: Tensor
    low: Tensor

    def __neg__(self) -> Pair:
        return Pair(-self.high, -self.low)

    def __add__(self, other: Pair) -> Pair:
        total = exact_sum(self.high, other.high)
        return joined(total.high, total.low + (self.low + other.low))

    def __mul__(self, other: Pair) -> Pair:
        product = exact_product(self.high, other.high)
        return joined(product.high, fma(self.high, other.low, fma(self.low, other.high, product.low)))

    def __truediv__(self, other: Pair) -> Pair:
        quotient = self.high / other.high
        rest = fma(-quotient, other.high, self.high) + fma(-quotient, other.low, self.low)
        return joined(quotient, rest / other.high)

    def sqrt(self) -> Pair:
        root = self.high.sqrt()
        rest = fma(-root, root, self.high) + self.low
        return joined(root, self.high.eq(0).where(0.0, rest / (root + root)))

    @property
    def rounded(self) -> Tensor:
        return self.high + self.low


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
    return Pair(x, constant(0.0, x.dtype))


def number(high: float, low: float, dtype: DType) -> Pair:
    return Pair(constant(high, dtype), constant(low, dtype))
