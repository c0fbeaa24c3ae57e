"""Fused recurrent cells, which PyTorch calls for LSTM and GRU on devices like this one. The workspaces hold what the
gradients need: for an LSTM the activated gates; for a GRU reset, update and new gates, the old state and the new gate's
hidden part."""

from __future__ import annotations

import torch
from tinygrad import Tensor

from torch_tinygrad.trace.decisions import decide

from ..kernels.threads import SMALL, stored
from . import elementary as e
from .matmul import accumulator
from .registry import SideBySide, lowers

aten = torch.ops.aten


def gates(count: int, contribution: Tensor, bias: Tensor | None) -> list[Tensor]:
    """What the input or the state contributes to each gate, in single precision for half types. Each is computed from
    its own part: all of them together would be stored, as every gate reads another part."""
    kept = accumulator(contribution.dtype)
    parts = [part.cast(kept) for part in contribution.chunk(count, dim=1)]
    return parts if bias is None else [p + b.cast(kept) for p, b in zip(parts, bias.chunk(count), strict=True)]


def materialised(state: Tensor) -> Tensor:
    """What the next step reads, stored: it would compute the steps before it again. Kernels of one step are merged."""
    return stored(state) if decide("store", state.numel() >= SMALL) else state


@lowers(aten._thnn_fused_lstm_cell.default, fuses=True)
def lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None) -> tuple[Tensor | SideBySide, ...]:
    batch, width = cx.shape
    kept = accumulator(input_gates.dtype)
    total = input_gates.cast(kept) + hidden_gates.cast(kept)
    for bias in (input_bias, hidden_bias):
        total = total if bias is None else total + bias.cast(kept)
    # All gates in one loop: the hyperbolic tangent is a stretched sigmoid.
    is_cell = (Tensor.arange(4) == 2).reshape(1, 4, 1).cast(kept)
    squashed = e.sigmoid(total.reshape(batch, 4, width) * (1 + is_cell))
    workspace = materialised((squashed * (1 + is_cell) - is_cell).reshape(batch, 4 * width))
    enter, forget, cell, out = workspace.chunk(4, dim=1)
    cy = materialised(forget * cx.cast(kept) + enter * cell)
    return materialised(out * e.tanh(cy)), cy, workspace


@lowers(aten._thnn_fused_lstm_cell_backward_impl.default, fuses=True)
def lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias: bool) -> tuple[Tensor | SideBySide | None, ...]:
    kept = accumulator(workspace.dtype)
    enter, forget, cell, out = workspace.cast(kept).chunk(4, dim=1)
    squashed = e.tanh(cy.cast(kept))
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
    grad_gates = SideBySide(parts)
    return grad_gates, materialised(grad_cell * forget), grad_gates.cat().sum(0, dtype=kept) if has_bias else None


@lowers(aten._thnn_fused_gru_cell.default, fuses=True)
def gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None) -> tuple[Tensor, SideBySide]:
    input_reset, input_update, input_new = gates(3, input_gates, input_bias)
    reset, update, hidden_new = gates(3, hidden_gates, hidden_bias)
    hx = hx.cast(reset.dtype)
    reset, update = e.sigmoid(input_reset + reset), e.sigmoid(input_update + update)
    new = e.tanh(input_new + reset * hidden_new)
    return materialised(new + update * (hx - new)), SideBySide((reset, update, new, hx, hidden_new))


@lowers(aten._thnn_fused_gru_cell_backward.default, fuses=True)
def gru_cell_backward(grad_hy, workspace, has_bias: bool) -> tuple[Tensor | SideBySide | None, ...]:
    kept = accumulator(workspace.dtype)
    reset, update, new, hx, hidden_new = workspace.cast(kept).chunk(5, dim=1)
    grad = grad_hy.cast(kept)
    grad_update = grad * (hx - new) * update * (1 - update)
    grad_new = grad * (1 - update) * (1 - new * new)
    grad_reset = grad_new * hidden_new * reset * (1 - reset)
    input_grad = SideBySide((grad_reset, grad_update, grad_new))
    hidden_grad = SideBySide((grad_reset, grad_update, grad_new * reset))
    biases = (input_grad.cat().sum(0), hidden_grad.cat().sum(0)) if has_bias else (None, None)
    return input_grad, hidden_grad, grad * update, *biases
