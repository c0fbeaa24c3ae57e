// Recurrent cells and layers in ATen's operators: PyTorch's fused cells have no kernels on the CPU, and the layers of rnn.cpp
// are our own.
// Workspaces hold what those of lower/rnn.py hold, so that a forward pass may be run one way and its gradient the other.
#include <ATen/TensorOperators.h>
#include <ATen/core/TensorBody.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

namespace tiny {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

at::ScalarType wide(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype; }
Tensor widened(const Tensor& t) { return t.to(wide(t.scalar_type())); }
bool given(const OptionalTensor& t) { return t.has_value() && t->defined(); }

Tensor with_bias(const Tensor& gates, const OptionalTensor& bias) {
  return given(bias) ? widened(gates).add(widened(*bias)) : widened(gates);
}

// ---- LSTM ----

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto dtype = input_gates.scalar_type();
  Tensor gates = with_bias(input_gates, input_bias).add(with_bias(hidden_gates, hidden_bias));
  const auto parts = gates.chunk(4, 1);
  parts[0].sigmoid_(), parts[1].sigmoid_(), parts[2].tanh_(), parts[3].sigmoid_();
  const Tensor cy = parts[1].mul(widened(cx)).addcmul_(parts[0], parts[2]);
  const Tensor hy = cy.tanh().mul_(parts[3]);
  return {hy.to(dtype), cy.to(dtype), gates.to(dtype)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace, bool has_bias) {
  const auto dtype = workspace.scalar_type();
  const auto parts = widened(workspace).chunk(4, 1);
  const Tensor &enter = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const Tensor squashed = widened(cy).tanh();
  Tensor grad_gates = at::empty(workspace.sizes(), workspace.options().dtype(wide(dtype)));
  const auto grads = grad_gates.chunk(4, 1);
  Tensor grad_cell = at::zeros_like(squashed);
  if (given(grad_hy)) {
    const Tensor grad = widened(*grad_hy);
    grads[3].copy_(grad.mul(squashed).mul_(out).mul_(1 - out));
    grad_cell = grad.mul(out).mul_(1 - squashed * squashed);
  } else {
    grads[3].zero_();
  }
  if (given(grad_cy)) grad_cell.add_(widened(*grad_cy));
  grads[0].copy_(grad_cell.mul(cell).mul_(enter).mul_(1 - enter));
  grads[1].copy_(grad_cell.mul(widened(cx)).mul_(forget).mul_(1 - forget));
  grads[2].copy_(grad_cell.mul(enter).mul_(1 - cell * cell));
  return {grad_gates.to(dtype), grad_cell.mul_(forget).to(dtype), has_bias ? grad_gates.sum(0).to(dtype) : Tensor()};
}

// ---- GRU ----

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto dtype = input_gates.scalar_type();
  const auto from_input = with_bias(input_gates, input_bias).chunk(3, 1), from_state = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor state = widened(hx);
  const Tensor reset = from_input[0].add(from_state[0]).sigmoid_(), update = from_input[1].add(from_state[1]).sigmoid_();
  const Tensor fresh = from_input[2].add(reset.mul(from_state[2])).tanh_();
  const Tensor hy = state.sub(fresh).mul_(update).add_(fresh);
  return {hy.to(dtype), at::cat({reset, update, fresh, state, from_state[2]}, 1).to(dtype)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  const auto dtype = workspace.scalar_type();
  const auto parts = widened(workspace).chunk(5, 1);
  const Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &state = parts[3], &hidden = parts[4];
  const Tensor grad = widened(grad_hy);
  const Tensor grad_update = grad * (state - fresh) * update * (1 - update);
  const Tensor grad_fresh = grad * (1 - update) * (1 - fresh * fresh);
  const Tensor grad_reset = grad_fresh * hidden * reset * (1 - reset);
  const Tensor for_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  const Tensor for_state = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  return {for_input.to(dtype), for_state.to(dtype), grad.mul(update).to(dtype), has_bias ? for_input.sum(0).to(dtype) : Tensor(),
          has_bias ? for_state.sum(0).to(dtype) : Tensor()};
}

// ---- layers ----

struct Steps {
  int64_t count;
  bool reverse;
  int64_t operator[](int64_t i) const { return reverse ? count - 1 - i : i; }
};

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> layer(const Tensor& input, const Tensor& hx, const OptionalTensor& cx,
                                                         const Tensor& w_ih, const Tensor& w_hh, const OptionalTensor& b_ih,
                                                         const OptionalTensor& b_hh, std::string_view cell, bool reverse) {
  const int64_t count = input.size(0), batch = input.size(1), width = hx.size(1);
  const bool is_lstm = cell == "lstm", is_gru = cell == "gru";
  const Tensor gates = at::mm(input.reshape({count * batch, input.size(2)}), w_ih.t()).view({count, batch, w_ih.size(0)});
  const Tensor output = at::empty({count, batch, width}, input.options());
  const Tensor cells = is_lstm ? at::empty({count, batch, width}, input.options()) : Tensor();
  const int64_t kept = is_lstm ? 4 : is_gru ? 5 : 0;
  const Tensor workspace = kept ? at::empty({count, batch, kept * width}, input.options()) : Tensor();
  const Steps steps{count, reverse};
  const Tensor to_gates = w_hh.t();
  Tensor h = hx, c = is_lstm ? *cx : Tensor(), kept_now;
  for (int64_t i = 0; i < count; i++) {
    const int64_t t = steps[i];
    const Tensor from_state = at::mm(h, to_gates);
    if (is_lstm) {
      std::tie(h, c, kept_now) = lstm_cell(gates[t], from_state, c, b_ih, b_hh);
      cells[t].copy_(c);
    } else if (is_gru) {
      std::tie(h, kept_now) = gru_cell(gates[t], from_state, h, b_ih, b_hh);
    } else {
      const Tensor total = with_bias(gates[t], b_ih).add(with_bias(from_state, b_hh));
      h = (cell == "tanh" ? total.tanh() : total.relu()).to(input.scalar_type());
    }
    if (kept) workspace[t].copy_(kept_now);
    output[t].copy_(h);
  }
  return {output, h.clone(), is_lstm ? c.clone() : Tensor(), cells, workspace};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> layer_backward(
    const OptionalTensor& grad_output, const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, const Tensor& input, const Tensor& hx,
    const OptionalTensor& cx, const Tensor& w_ih, const Tensor& w_hh, const Tensor& output, const OptionalTensor& cells,
    const OptionalTensor& workspace, bool has_biases, std::string_view cell, bool reverse) {
  const int64_t count = input.size(0), batch = input.size(1), rows = w_ih.size(0);
  const bool is_lstm = cell == "lstm", is_gru = cell == "gru";
  const Tensor from_input = at::empty({count, batch, rows}, input.options());
  const Tensor from_state = is_gru ? at::empty({count, batch, rows}, input.options()) : from_input;
  const Steps steps{count, reverse};
  Tensor grad_h = given(grad_hy) ? *grad_hy : Tensor(), grad_c = given(grad_cy) ? *grad_cy : Tensor();
  for (int64_t i = count - 1; i >= 0; i--) {
    const int64_t t = steps[i];
    Tensor grad = given(grad_output) ? grad_output->select(0, t) : Tensor();
    if (grad_h.defined()) grad = grad.defined() ? grad.add(grad_h) : grad_h;
    Tensor rest;
    if (is_lstm) {
      const Tensor before = i == 0 ? *cx : cells->select(0, steps[i - 1]);
      Tensor gates, bias;
      std::tie(gates, grad_c, bias) =
          lstm_cell_backward(grad.defined() ? OptionalTensor(grad) : std::nullopt, grad_c.defined() ? OptionalTensor(grad_c) : std::nullopt,
                             before, cells->select(0, t), workspace->select(0, t), false);
      from_input[t].copy_(gates);
    } else if (is_gru) {
      Tensor for_input, for_state, bias, other;
      std::tie(for_input, for_state, rest, bias, other) = gru_cell_backward(grad, workspace->select(0, t), false);
      from_input[t].copy_(for_input);
      from_state[t].copy_(for_state);
    } else if (cell == "tanh") {
      from_input[t].copy_(grad.mul(1 - output[t] * output[t]));
    } else {
      from_input[t].copy_(grad.mul(output[t].gt(0)));
    }
    grad_h = at::mm(from_state[t], w_hh);
    if (rest.defined()) grad_h.add_(rest);
  }
  const Tensor flat_input = from_input.view({count * batch, rows}), flat_state = from_state.view({count * batch, rows});
  const Tensor grad_input = at::mm(flat_input, w_ih).view(input.sizes());
  const Tensor grad_w_ih = at::mm(flat_input.t(), input.reshape({count * batch, input.size(2)}));
  Tensor grad_w_hh = at::mm(from_state[steps[0]].t(), hx);
  if (count > 1) {
    const Tensor later = from_state.narrow(0, reverse ? 0 : 1, count - 1).reshape({(count - 1) * batch, rows});
    const Tensor states = output.narrow(0, reverse ? 1 : 0, count - 1).reshape({(count - 1) * batch, hx.size(1)});
    grad_w_hh = at::addmm(grad_w_hh, later.t(), states);
  }
  return {grad_input,
          grad_h,
          is_lstm ? grad_c : Tensor(),
          grad_w_ih,
          grad_w_hh,
          has_biases ? flat_input.sum(0) : Tensor(),
          has_biases ? flat_state.sum(0) : Tensor()};
}

bool has_kernel(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

}  // namespace

TORCH_LIBRARY_IMPL(tiny, CPU, m) {
  m.impl("recurrent_layer", TORCH_FN(layer));
  m.impl("recurrent_layer_backward", TORCH_FN(layer_backward));
}

TORCH_LIBRARY_IMPL(tiny, CUDA, m) {
  m.impl("recurrent_layer", TORCH_FN(layer));
  m.impl("recurrent_layer_backward", TORCH_FN(layer_backward));
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  if (!has_kernel("aten::_thnn_fused_lstm_cell")) m.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  if (!has_kernel("aten::_thnn_fused_lstm_cell_backward_impl")) m.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  if (!has_kernel("aten::_thnn_fused_gru_cell")) m.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  if (!has_kernel("aten::_thnn_fused_gru_cell_backward")) m.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
}

}  // namespace tiny
