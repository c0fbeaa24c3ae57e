"""Copies and conversions: everything that moves values without computing."""

from __future__ import annotations

import torch
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

from .maths import widest_float
from .registry import lowers

aten = torch.ops.aten


def convert(x: Tensor | float, dtype: DType) -> Tensor:
    """A value conversion as C does it on the CPU: floats reach narrow integers through a wider one and wrap. A number,
    which is what a 0-dim CPU tensor arrives as, becomes a tensor."""
    if not isinstance(x, Tensor):
        x = Tensor.full((), x, dtype=widest_float() if isinstance(x, float) else dtypes.int64, buffer=False)
    if dtypes.is_float(x.dtype) and dtypes.is_int(dtype) and dtype.itemsize < 8:
        return x.cast(dtypes.int64 if dtype == dtypes.uint32 else dtypes.int32).cast(dtype)
    return x.cast(dtype)


@lowers(aten._to_copy.default)
def to_copy(x, *, meta):
    return convert(x, meta[0].tiny)


@lowers(aten.clone.default)
def clone(x):
    return x


@lowers(aten.copy.default)
def copy(destination, source, non_blocking=False):
    return convert(source, destination.dtype).expand(destination.shape)
