"""Reductions with what surrounds them: softmax, layer norm + GELU + residual, a masked attention score."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from .harness import Contenders, Settings, function_contenders, workload

GOALS = (0.7, 1.05, 1.2)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@workload("softmax", "fused", GOALS)
def softmax(settings: Settings) -> Contenders:
    x = normal(1 if settings.quick else 8, 8, 512, 512)
    return function_contenders(lambda x: x.softmax(-1), lambda x: x.softmax(-1), [x])


@workload("layer norm + GELU + residual", "fused", GOALS)
def norm_gelu_residual(settings: Settings) -> Contenders:
    width = 768
    x, weight, bias = normal(1 if settings.quick else 8, 512, width), normal(width, seed=1), normal(width, seed=2)

    def with_torch(x, weight, bias):
        return F.gelu(F.layer_norm(x, (width,), weight, bias), approximate="tanh") + x

    def with_tinygrad(x, weight, bias):
        return (x.layernorm(eps=1e-5) * weight + bias).gelu() + x

    return function_contenders(with_torch, with_tinygrad, [x, weight, bias])


@workload("masked attention score", "fused", GOALS)
def attention_score(settings: Settings) -> Contenders:
    batch, heads, length, depth = (1 if settings.quick else 8), 8, 256, 64
    q, k = normal(batch, heads, length, depth), normal(batch, heads, length, depth, seed=1)
    mask = torch.ones(length, length, dtype=torch.bool).tril()

    def with_torch(q, k, mask):
        scores = q @ k.transpose(-1, -2) / depth**0.5
        return scores.masked_fill(~mask, float("-inf")).softmax(-1)

    def with_tinygrad(q, k, mask):
        scores = q @ k.transpose(-1, -2) / depth**0.5
        return mask.where(scores, float("-inf")).softmax(-1)

    return function_contenders(with_torch, with_tinygrad, [q, k, mask])
