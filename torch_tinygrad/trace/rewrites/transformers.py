"""The layers that nn.TransformerEncoder and nn.MultiheadAttention call whole in inference, as what they are made of:
parts fuse with each other and with what surrounds them. With a mask, or weights to return, they stay whole."""

from __future__ import annotations

import torch

from .registry import rewrites

aten = torch.ops.aten


@rewrites(aten._transformer_encoder_layer_fwd.default)
def encoder_layer(
    x, width, heads, qkv, qkv_bias, out, out_bias, use_gelu, norm_first, eps, scale_1, shift_1, scale_2, shift_2,
    up, up_bias, down, down_bias, mask=None, mask_type=None,
):  # fmt: skip
    if mask is not None:
        return NotImplemented

    def norm(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return aten.native_layer_norm(x, [width], scale, shift, eps)[0]

    seen = norm(x, scale_1, shift_1) if norm_first else x
    x = x + _attention(seen, heads, qkv, qkv_bias, out, out_bias)
    if not norm_first:
        x = norm(x, scale_1, shift_1)
    seen = norm(x, scale_2, shift_2) if norm_first else x
    hidden = _linear(seen, up, up_bias)
    hidden = aten.gelu(hidden) if use_gelu else hidden.relu()
    x = x + _linear(hidden, down, down_bias)
    return x if norm_first else norm(x, scale_2, shift_2)


@rewrites(aten._native_multi_head_attention.default)
def multi_head_attention(
    query, key, value, width, heads, qkv, qkv_bias, out, out_bias, mask=None, need_weights=True, average=True,
    mask_type=None,
):  # fmt: skip
    if mask is not None or need_weights or not _place(query) == _place(key) == _place(value):
        return NotImplemented
    return _attention(query, heads, qkv, qkv_bias, out, out_bias), None


def _attention(x, heads: int, qkv, qkv_bias, out, out_bias) -> torch.Tensor:
    batch, length, width = x.shape
    parts = _linear(x, qkv, qkv_bias).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    seen = aten._scaled_dot_product_flash_attention_for_cpu(*parts.unbind(0))[0]
    return _linear(seen.transpose(1, 2).reshape(batch, length, width), out, out_bias)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    rows = aten.addmm(bias, x.reshape(-1, x.shape[-1]), weight.t())
    return rows.view(*x.shape[:-1], len(weight))


def _place(x: torch.Tensor) -> tuple:
    return x.untyped_storage()._cdata, x.storage_offset(), x.shape, x.stride()
