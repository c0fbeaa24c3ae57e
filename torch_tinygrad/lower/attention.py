"""Scaled dot-product attention and its gradient, recomputing the weights from the saved logarithms of their sums."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor

from . import elementary as e
from .maths import index_range
from .matmul import product
from .registry import lowers

aten = torch.ops.aten


def for_each_query_head(x: Tensor, heads: int) -> Tensor:
    """Keys or values [B, H', S, E] with each head repeated for the query heads that share it."""
    batch, shared, length, width = x.shape
    if shared == heads:
        return x
    return x.unsqueeze(2).expand(batch, shared, heads // shared, length, width).reshape(batch, heads, length, width)


def for_each_shared_head(grad: Tensor, heads: int) -> Tensor:
    batch, queries, length, width = grad.shape
    if queries == heads:
        return grad
    return grad.reshape(batch, heads, queries // heads, length, width).sum(2, dtype=grad.dtype)


def scores(query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, scale: float) -> Tensor:
    result = product(query, key.transpose(-1, -2)) * scale
    if mask is not None:
        result = result + mask.cast(result.dtype)
    if is_causal:
        rows, columns = index_range(result.shape[-2]), index_range(result.shape[-1])
        result = (columns <= rows.unsqueeze(-1)).where(result, -math.inf)
    return result


def scale_of(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    """The output, and the logarithm of each row's sum: both 0 for a row in which everything is masked. Weights are
    rounded to the values' type before they meet, as in the CPU's kernel."""
    heads = query.shape[1]
    logits = scores(query, for_each_query_head(key, heads), is_causal, attn_mask, scale_of(query, scale))
    largest = logits.max(-1, keepdim=True)
    attends = largest > -math.inf
    weights = e.exp(logits - attends.where(largest, 0))
    total = attends.where(weights.sum(-1, keepdim=True, dtype=weights.dtype), 1)
    out = product(weights.cast(value.dtype), for_each_query_head(value, heads)) / total
    return out, attends.where(largest + e.log(total), 0).squeeze(-1)


@lowers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_gradients(
    grad, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None
) -> tuple[Tensor, Tensor, Tensor]:
    heads, shared, scale = query.shape[1], key.shape[1], scale_of(query, scale)
    keys, values = for_each_query_head(key, heads), for_each_query_head(value, heads)
    logits = scores(query, keys, is_causal, attn_mask, scale)
    kept = logits.dtype
    weights = e.exp(logits - logsumexp.cast(kept).unsqueeze(-1))
    share = (grad.cast(kept) * out.cast(kept)).sum(-1, keepdim=True, dtype=kept)
    slope = (weights * (product(grad, values.transpose(-1, -2)) - share) * scale).cast(query.dtype)
    grad_key = product(slope.transpose(-1, -2), query)
    grad_value = product(weights.cast(grad.dtype).transpose(-1, -2), grad)
    return product(slope, keys), for_each_shared_head(grad_key, shared), for_each_shared_head(grad_value, shared)
