"""What `torch.amp.GradScaler` asks of a device: gradients divided by the scale, and the scale's next value."""

from __future__ import annotations

import torch
from tinygrad import Tensor

from .registry import lowers

aten = torch.ops.aten


@lowers(aten._amp_foreach_non_finite_check_and_unscale.default)
def unscale(gradients: list[Tensor], found: Tensor, inverse_scale: Tensor) -> list[Tensor]:
    """The gradients times the inverse of the scale, and 1 where one of them, or one before them, is not finite."""
    for gradient in gradients:
        found = gradient.isfinite().all().where(found, 1.0)
    return [*((g.float() * inverse_scale).cast(g.dtype) for g in gradients), found]


@lowers(aten._amp_update_scale.default)
def update_scale(scale: Tensor, steps: Tensor, found: Tensor, growth: float, backoff: float, interval: int):
    """The scale falls after gradients that were not finite, and grows after `interval` steps of finite ones."""
    failed, counted = found != 0, steps + 1
    grown = scale * growth
    grows = counted == interval
    next_scale = failed.where(scale * backoff, (grows & grown.isfinite()).where(grown, scale))
    return next_scale, (failed | grows).where(0, counted)
