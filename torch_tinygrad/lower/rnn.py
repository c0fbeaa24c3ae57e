"""Fused recurrent cells, which PyTorch calls for LSTM and GRU on devices like this one. The workspaces hold what the
gradients need: for an LSTM the activated gates; for a GRU reset, update and new gates, the old state and the new gate's
hidden part."""

from __future__ import annotations

import torch
from tinygrad import Tensor

from .matmul import accumulator
from .registry import lowers
from .threads import SMALL, stored

aten = torch.ops.aten


def gates(input_gates: Tensor, hidden_gates: Tensor, input_bias, hidden_bias) -> tuple[Tensor, Tensor]:
    """Both contributions with their biases, computed in single precision for half types."""
    kept = accumulator(input_gates.dtype)
    pairs = ((input_gates, input_bias), (hidden_gates, hidden_bias))
    first, second = (g.cast(kept) if b is None else g.cast(kept) + b.cast(kept) for g, b in pairs)
    return first, second


@lowers(aten._thnn_fused_lstm_cell.default)
def lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None) -> tuple[Tensor, ...]:
    first, second = gates(input_gates, hidden_gates, input_bias, hidden_bias)
    enter, forget, cell, out = (first + second).chunk(4, dim=1)
    workspace = enter.sigmoid().cat(forget.sigmoid(), cell.tanh(), out.sigmoid(), dim=1)
    if workspace.numel() >= SMALL:
        workspace = stored(workspace)
    enter, forget, cell, out = workspace.chunk(4, dim=1)
    cy = forget * cx.cast(first.dtype) + enter * cell
    return out * cy.tanh(), cy, workspace


@lowers(aten._thnn_fused_lstm_cell_backward_impl.default)
def lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias: bool) -> tuple[Tensor | None, ...]:
    kept = accumulator(workspace.dtype)
    enter, forget, cell, out = workspace.cast(kept).chunk(4, dim=1)
    squashed = cy.cast(kept).tanh()
    grad_out = grad_cell = squashed.const_like(0)
    if grad_hy is not None:
        grad_hy = grad_hy.cast(kept)
        grad_out = grad_hy * squashed * out * (1 - out)
        grad_cell = grad_hy * out * (1 - squashed * squashed)
    if grad_cy is not None:
        grad_cell = grad_cell + grad_cy.cast(kept)
    parts = (
        grad_cell * cell * enter * (1 - enter),
        grad_cell * cx.cast(kept) * forget * (1 - forget),
        grad_cell * enter * (1 - cell * cell),
        grad_out,
    )
    grad_gates = parts[0].cat(*parts[1:], dim=1)
    return grad_gates, grad_cell * forget, grad_gates.sum(0, dtype=kept) if has_bias else None


@lowers(aten._thnn_fused_gru_cell.default)
def gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None) -> tuple[Tensor, Tensor]:
    first, second = gates(input_gates, hidden_gates, input_bias, hidden_bias)
    (input_reset, input_update, input_new), (reset, update, hidden_new) = first.chunk(3, dim=1), second.chunk(3, dim=1)
    hx = hx.cast(first.dtype)
    reset, update = (input_reset + reset).sigmoid(), (input_update + update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    return new + update * (hx - new), reset.cat(update, new, hx, hidden_new, dim=1)


@lowers(aten._thnn_fused_gru_cell_backward.default)
def gru_cell_backward(grad_hy, workspace, has_bias: bool) -> tuple[Tensor | None, ...]:
    kept = accumulator(workspace.dtype)
    reset, update, new, hx, hidden_new = workspace.cast(kept).chunk(5, dim=1)
    grad = grad_hy.cast(kept)
    grad_update = grad * (hx - new) * update * (1 - update)
    grad_new = grad * (1 - update) * (1 - new * new)
    grad_reset = grad_new * hidden_new * reset * (1 - reset)
    input_grad = grad_reset.cat(grad_update, grad_new, dim=1)
    hidden_grad = grad_reset.cat(grad_update, grad_new * reset, dim=1)
    biases = (input_grad.sum(0), hidden_grad.sum(0)) if has_bias else (None, None)
    return input_grad, hidden_grad, grad * update, *biases
