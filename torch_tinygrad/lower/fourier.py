"""Fourier transforms: Cooley and Tukey's splitting into short transforms, each one reduction; long prime lengths become
a convolution (Bluestein) of a length that splits."""

from __future__ import annotations

import functools
import math

import torch
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

from . import maths as m
from .complex import Complex, as_complex, lowers_complex

aten = torch.ops.aten
# A transform of this length is one sum of products.
SHORT = 16
# A prime length up to this is one too.
SHORT_PRIME = 64


def turns(count: Tensor, whole: int, sign: int, dtype: DType) -> Complex:
    """exp(sign * 2 pi i * count / whole), for integers `count`: exact in the fraction of a turn."""

    def sine(quarters: int) -> Tensor:
        part = ((4 * count + quarters * whole) % (4 * whole)).cast(m.widest_float()) / (4 * whole)
        return -m.sin_pi(2 * part - 1)

    return Complex(sine(1).cast(dtype), (sign * sine(0)).cast(dtype))


def stored(z: Complex) -> Complex:
    return z.map(lambda part: part.contiguous())


def numbers(count: int, largest: int) -> Tensor:
    """0, 1, ... in a type that holds `largest`."""
    return m.index_range(count).cast(dtypes.int32 if largest < 2**31 else dtypes.int64)


@functools.cache
def split_length(length: int) -> int:
    """The length of the first of two transforms that make one of this length; 1 where it does not split."""
    best = 1
    for factor in range(2, min(length, SHORT_PRIME + 1)):
        if length % factor == 0 and (factor <= SHORT or (best == 1 and is_prime(factor))):
            best = factor
    if best == 1 and length > SHORT_PRIME:
        smallest = next((f for f in range(SHORT_PRIME + 1, math.isqrt(length) + 1) if length % f == 0), 1)
        best = smallest
    return best


def is_prime(number: int) -> bool:
    return all(number % f for f in range(2, math.isqrt(number) + 1))


def transform(z: Complex, sign: int) -> Complex:
    """Over the last dimension, without a factor."""
    length = z.shape[-1]
    if length <= 1:
        return z
    if length <= SHORT:
        return direct(z, sign)
    first = split_length(length)
    if first == 1:
        return direct(z, sign) if length <= SHORT_PRIME else convolved(z, sign)
    second = length // first
    lead = z.shape[:-1]
    rows = z.map(lambda part: part.reshape(*lead, first, second).transpose(-1, -2))
    rows = transform(rows, sign)  # [..., second, first]
    counts = numbers(second, 4 * length * 2).unsqueeze(-1) * numbers(first, 4 * length * 2)
    rows = rows * stored(turns(counts, length, sign, z.dtype))
    columns = transform(rows.map(lambda part: part.transpose(-1, -2)), sign)  # [..., first, second]
    return columns.map(lambda part: part.transpose(-1, -2).reshape(*lead, length))


def direct(z: Complex, sign: int) -> Complex:
    length = z.shape[-1]
    place = numbers(length, length)
    matrix = stored(turns(place.unsqueeze(-1) * place % length, length, sign, z.dtype))
    spread = z.map(lambda part: part.unsqueeze(-2))
    return stored((spread * matrix).map(lambda part: part.sum(-1, dtype=z.dtype)))


def convolved(z: Complex, sign: int) -> Complex:
    """jk = (j² + k² - (k - j)²) / 2 makes the transform a convolution with a chirp, done at a length that splits."""
    length = z.shape[-1]
    padded = 1 << (2 * length - 2).bit_length()
    place = numbers(padded, 8 * padded * padded)
    away = (place * 2 > padded).where(padded - place, place)
    chirp = stored(turns(away * away % (2 * length), 2 * length, sign, z.dtype))
    own = chirp.map(lambda part: part.shrink(((0, length),)))
    fill = (*((0, 0) for _ in z.shape[:-1]), (0, padded - length))
    signal = transform((z * own).map(lambda part: part.pad(fill)), -1)
    product = stored(signal * transform(chirp.conj(), -1))
    back = transform(product, 1).map(lambda part: part.shrink((*((0, s) for s in z.shape[:-1]), (0, length))))
    return back * own * (1 / padded)


def along(z: Complex, dim: int, sign: int) -> Complex:
    moved = z.map(lambda part: part.transpose(dim, -1))
    return transform(moved, sign).map(lambda part: part.transpose(dim, -1))


def over(z: Complex, dims, sign: int) -> Complex:
    return functools.reduce(lambda value, dim: along(value, dim, sign), dims, z)


def scaled(z: Complex, sizes, normalization: int) -> Complex:
    """0: as it is; 1: by the root of the number of elements; 2: by their number."""
    count = math.prod(sizes)
    return z if normalization == 0 or not count else z * (count**-0.5 if normalization == 1 else 1 / count)


def window(part: Tensor, dim: int, end: int) -> Tensor:
    return part.shrink(tuple((0, end if i == dim % part.ndim else s) for i, s in enumerate(part.shape)))


@lowers_complex(aten._fft_c2c.default)
def between_complex(z, dims, normalization: int, forward: bool) -> Complex:
    z = as_complex(z)
    return scaled(over(z, dims, -1 if forward else 1), [z.shape[d] for d in dims], normalization)


@lowers_complex(aten._fft_r2c.default)
def from_real(x: Tensor, dims, normalization: int, onesided: bool) -> Complex:
    sizes, last = [x.shape[d] for d in dims], dims[-1]
    z = along(as_complex(x), last, -1)
    if onesided:
        z = z.map(lambda part: window(part, last, x.shape[last] // 2 + 1))
    return scaled(over(z, dims[:-1], -1), sizes, normalization)


@lowers_complex(aten._fft_c2r.default)
def to_real(z: Complex, dims, normalization: int, last_dim_size: int) -> Tensor:
    last = dims[-1]
    z = over(z, dims[:-1], 1)
    z = z.map(lambda part: window(part, last, last_dim_size // 2 + 1))
    mirrored = z.map(lambda part: part.flip(last)).conj()
    rest = (last_dim_size - 1) // 2
    skip = 1 - last_dim_size % 2  # an even length has its middle once

    def cut(part: Tensor) -> Tensor:
        axis = last % part.ndim
        return part.shrink(tuple((skip, skip + rest) if i == axis else (0, s) for i, s in enumerate(part.shape)))

    mirrored = mirrored.map(cut)
    whole = Complex(z.re.cat(mirrored.re, dim=last), z.im.cat(mirrored.im, dim=last))
    sizes = [*(z.shape[d] for d in dims[:-1]), last_dim_size]
    return scaled(along(whole, last, 1), sizes, normalization).re
