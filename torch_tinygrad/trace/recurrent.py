"""Recurrent layers, recorded as one operator each (`csrc/operators/rnn.cpp`), as the nodes that compute them.

All inputs are multiplied at once, and so is everything that belongs to a weight in the backward pass: what is left to
each step is one product with the state, and the cell. States, and gradients of gates, lie side by side for all steps in
one storage, so that the products over all steps read them as they are.
"""

from __future__ import annotations

from typing import Any

from .adding import Nodes, transposed
from .nodes import Node, Number, Region, Trace, plain

FORWARD, BACKWARD = "tiny::recurrent_layer", "tiny::recurrent_layer_backward"


def expand_layers(trace: Trace) -> Trace:
    """The trace with every recurrent layer as its steps."""
    nodes: list[Node] = []
    for node in trace.nodes:
        if node.op == FORWARD:
            _forward(node, Nodes(nodes, trace.storages, node.origin))
        elif node.op == BACKWARD:
            _backward(node, Nodes(nodes, trace.storages, node.origin))
        else:
            nodes.append(node)
    return Trace(nodes, trace.storages, trace.numbers)


def at(steps: Region, t: int) -> Region:
    """One step of a (steps, batch, width) region."""
    return steps.at(size=steps.size[1:], stride=steps.stride[1:], offset=steps.offset + t * steps.stride[0])


def rows(steps: Region, first: int = 0, count: int | None = None) -> Region:
    """Steps of a contiguous (steps, batch, width) region, as one matrix."""
    length, batch, width = steps.size
    size = ((length if count is None else count) * batch, width)
    return steps.at(size=size, stride=(width, 1), offset=steps.offset + first * batch * width)


_ACTIVATIONS = {"tanh": "aten::tanh", "relu": "aten::relu"}


def _forward(node: Node, nodes: Nodes) -> None:
    given, hx, cx, w_ih, w_hh, b_ih, b_hh, cell, reverse = node.args
    results: tuple[Any, ...] = node.outs  # cells have states and workspaces of their own, or None
    output, hy, cy, cells, workspace = results
    count, batch, _ = given.size
    gates = nodes.new(given, count, batch, w_ih.size[0])
    nodes.product(rows(given), transposed(w_ih), rows(gates))
    h, c = hx, cx
    for t in range(count - 1, -1, -1) if plain(reverse) else range(count):
        state_gates = nodes.product(h, transposed(w_hh))
        arguments = (at(gates, t), state_gates)
        before, h = h, at(output, t)
        if cell == "lstm":
            inputs, c = (*arguments, c, b_ih, b_hh), at(cells, t)
            nodes.add("aten::_thnn_fused_lstm_cell", inputs, h, c, at(workspace, t))
        elif cell == "gru":
            nodes.add("aten::_thnn_fused_gru_cell", (*arguments, before, b_ih, b_hh), h, at(workspace, t))
        else:
            total = nodes.sum(*arguments)
            for bias in (b_ih, b_hh):
                total = nodes.sum(total, bias)
            nodes.add(_ACTIVATIONS[cell], (total,), h)
    nodes.copy(h, hy)
    if cy is not None:
        nodes.copy(c, cy)


def _backward(node: Node, nodes: Nodes) -> None:
    grad_output, grad_h, grad_c, given, hx, cx, w_ih, w_hh, output, cells, workspace, _, cell, reverse = node.args
    gradients: tuple[Any, ...] = node.outs
    grad_given, grad_hx, grad_cx, grad_w_ih, grad_w_hh, *grad_biases = gradients
    count, batch, _ = given.size
    # The gradients of what the input and the state contribute to the gates; they are the same but for a GRU's new gate.
    from_given = nodes.new(given, count, batch, w_ih.size[0])
    from_state = nodes.new(given, count, batch, w_ih.size[0]) if cell == "gru" else from_given
    backwards = range(count) if plain(reverse) else range(count - 1, -1, -1)
    before = 1 if plain(reverse) else -1
    for t in backwards:
        is_first = t == backwards[-1]
        grad = nodes.sum(None if grad_output is None else at(grad_output, t), grad_h)
        rest = None
        if cell == "lstm":
            next_grad_c = grad_cx if is_first else nodes.new(hx, *hx.size)
            states = cx if is_first else at(cells, t + before), at(cells, t)
            arguments = (grad, grad_c, *states, at(workspace, t), Number(False))
            nodes.add("aten::_thnn_fused_lstm_cell_backward_impl", arguments, at(from_given, t), next_grad_c, None)
            grad_c = next_grad_c
        elif cell == "gru":
            rest = nodes.new(hx, *hx.size)
            results = at(from_given, t), at(from_state, t), rest, None, None
            nodes.add("aten::_thnn_fused_gru_cell_backward", (grad, at(workspace, t), Number(False)), *results)
        elif cell == "tanh":
            nodes.add("aten::tanh_backward", (grad, at(output, t)), at(from_given, t))
        else:
            nodes.add("aten::threshold_backward", (grad, at(output, t), Number(0)), at(from_given, t))
        product = nodes.product(at(from_state, t), w_hh, grad_hx if is_first and rest is None else None)
        grad_h = nodes.sum(product, rest)
    if grad_h is not grad_hx:
        nodes.copy(grad_h, grad_hx)
    nodes.product(rows(from_given), w_ih, rows(grad_given))
    nodes.product(transposed(rows(from_given)), rows(given), grad_w_ih)
    _state_weight(nodes, from_state, output, hx, backwards[-1], grad_w_hh)
    for grad_bias, grads in zip(grad_biases, (from_given, from_state), strict=True):
        if grad_bias is not None:
            nodes.add("aten::sum.dim_IntList", (rows(grads), [Number(0)], Number(False), None), grad_bias)


def _state_weight(nodes: Nodes, grads: Region, output: Region, hx: Region, first: int, out: Region) -> None:
    """The gradient of the weight that states are multiplied with: the first step's state is `hx`, the others' are
    outputs of the step before."""
    count = grads.size[0]
    alone = nodes.product(transposed(at(grads, first)), hx, out if count == 1 else None)
    if count > 1:
        rest, states = (1, 0) if first == 0 else (0, 1)
        factors = transposed(rows(grads, rest, count - 1)), rows(output, states, count - 1)
        nodes.add("aten::addmm", (alone, *factors, Number(1), Number(1)), out)
