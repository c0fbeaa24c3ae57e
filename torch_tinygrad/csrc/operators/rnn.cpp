// Recurrent layers, each recorded as one operator. PyTorch would walk through the steps while recording and multiply every
// input on its own; the compiler (trace/recurrent.py) multiplies all inputs at once and has one product for the gradient of
// a weight that all steps share. What is unusual (projections, packed sequences, bad shapes) is left to PyTorch.
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "record/call.h"

namespace tiny {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::variable_list;

// PyTorch's kernel for all layers with one state.
using Walk = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, at::TensorList, bool, int64_t, double, bool, bool, bool);

struct Cell {
  const char* name;
  int64_t gates;  // rows of weights of each hidden element
  int64_t kept;   // numbers that its gradient needs of each step, besides states
  Walk* walk;     // null for an LSTM, which has two states
  bool has_cells() const { return walk == nullptr; }
};
constexpr Cell kCells[] = {
    {"lstm", 4, 4, nullptr}, {"gru", 3, 5, &at::native::gru}, {"tanh", 1, 0, &at::native::rnn_tanh}, {"relu", 1, 0, &at::native::rnn_relu}};
enum Kind : int { Lstm, Gru, Tanh, Relu };

const Cell& cell_named(std::string_view name) {
  for (const Cell& cell : kCells)
    if (name == cell.name) return cell;
  TORCH_CHECK(false, "tiny: no cell is called ", name);
}

// ---- the operators ----

// Makes a result, if it is wanted.
struct Wanted {
  at::TensorOptions options;
  Tensor operator()(at::IntArrayRef size, bool wanted) const { return wanted ? at::empty(size, options) : Tensor(); }
};

// The output, the last states (two of an LSTM), all cell states of an LSTM, and what else the gradient needs.
constexpr const char* kForward =
    "recurrent_layer(Tensor input, Tensor hx, Tensor? cx, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, str cell, bool reverse)"
    " -> (Tensor output, Tensor hy, Tensor cy, Tensor cells, Tensor workspace)";
struct Forward {
  static constexpr const char* name = "tiny::recurrent_layer";
  using Signature = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&,
                                                                       const Tensor&, const OptionalTensor&, const OptionalTensor&,
                                                                       std::string_view, bool);
};

// The gradients of the first seven arguments.
constexpr const char* kBackward =
    "recurrent_layer_backward(Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, Tensor input, Tensor hx, Tensor? cx, Tensor w_ih,"
    " Tensor w_hh, Tensor output, Tensor? cells, Tensor? workspace, bool has_biases, str cell, bool reverse)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)";
struct Backward {
  static constexpr const char* name = "tiny::recurrent_layer_backward";
  using Signature = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>(const OptionalTensor&, const OptionalTensor&,
                                                                                       const OptionalTensor&, const Tensor&, const Tensor&,
                                                                                       const OptionalTensor&, const Tensor&, const Tensor&,
                                                                                       const Tensor&, const OptionalTensor&,
                                                                                       const OptionalTensor&, bool, std::string_view, bool);
};

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward_meta(const Tensor& input, const Tensor& hx, const OptionalTensor&, const Tensor&,
                                                                const Tensor&, const OptionalTensor&, const OptionalTensor&,
                                                                std::string_view name, bool) {
  const Cell& cell = cell_named(name);
  const int64_t steps = input.size(0), batch = input.size(1), width = hx.size(1);
  const Wanted make{input.options()};
  return {make({steps, batch, width}, true), make({batch, width}, true), make({batch, width}, cell.has_cells()),
          make({steps, batch, width}, cell.has_cells()), make({steps, batch, cell.kept * width}, cell.kept > 0)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> backward_meta(const OptionalTensor&, const OptionalTensor&,
                                                                                 const OptionalTensor&, const Tensor& input,
                                                                                 const Tensor& hx, const OptionalTensor& cx,
                                                                                 const Tensor& w_ih, const Tensor& w_hh, const Tensor&,
                                                                                 const OptionalTensor&, const OptionalTensor&,
                                                                                 bool has_biases, std::string_view, bool) {
  const Wanted make{input.options()};
  const int64_t rows = w_ih.size(0);
  return {make(input.sizes(), true), make(hx.sizes(), true),   make(hx.sizes(), cx.has_value()), make(w_ih.sizes(), true),
          make(w_hh.sizes(), true),  make({rows}, has_biases), make({rows}, has_biases)};
}

// PyTorch's cells of single steps, for which it has no Meta kernels.
std::tuple<Tensor, Tensor> gru_cell_meta(const Tensor&, const Tensor&, const Tensor& hx, const OptionalTensor&, const OptionalTensor&) {
  return {at::empty(hx.sizes(), hx.options()), at::empty({hx.size(0), kCells[Gru].kept * hx.size(1)}, hx.options())};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward_meta(const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  const int64_t rows = workspace.size(1) / kCells[Gru].kept * kCells[Gru].gates;
  const Wanted make{workspace.options()};
  return {make({workspace.size(0), rows}, true), make({workspace.size(0), rows}, true), make(grad_hy.sizes(), true), make({rows}, has_bias),
          make({rows}, has_bias)};
}

bool has_meta(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").hasKernelForDispatchKey(c10::DispatchKey::Meta);
}

template <class Operator, class... Arguments>
auto record_layer(const Arguments&... arguments) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Operator::name, "").template typed<typename Operator::Signature>();
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(arguments...);
}

// ---- gradients ----

OptionalTensor optional(const Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; }

// The layer as PyTorch walks through it: gradients of these results have gradients themselves.
variable_list step_by_step(const Cell& cell, const variable_list& arguments, bool reverse) {
  const Tensor input = reverse ? arguments[0].flip(0) : arguments[0], hx = arguments[1].unsqueeze(0);
  const bool has_biases = arguments[5].defined();
  const variable_list params(arguments.begin() + 3, arguments.begin() + (has_biases ? 7 : 5));
  Tensor output, hy, cy;
  if (cell.has_cells()) {
    const variable_list states{hx, arguments[2].unsqueeze(0)};
    std::tie(output, hy, cy) = at::native::lstm(input, states, params, has_biases, 1, 0, false, false, false);
  } else {
    std::tie(output, hy) = cell.walk(input, hx, params, has_biases, 1, 0, false, false, false);
  }
  return {reverse ? output.flip(0) : output, hy.squeeze(0), cy.defined() ? cy.squeeze(0) : cy};
}

// Gradients that can be differentiated again. Aliases of the arguments keep them apart where one depends on another.
variable_list differentiable_gradients(const Cell& cell, const variable_list& arguments, bool reverse, const variable_list& grads) {
  variable_list aliases, wanted, results, given;
  for (const Tensor& t : arguments) aliases.push_back(t.defined() ? t.view_as(t) : t);
  const variable_list outputs = step_by_step(cell, aliases, reverse);
  for (size_t i = 0; i < outputs.size(); i++) {
    if (!outputs[i].defined() || !grads[i].defined() || !outputs[i].requires_grad()) continue;
    results.push_back(outputs[i]);
    given.push_back(grads[i]);
  }
  for (const Tensor& t : aliases)
    if (t.defined() && t.requires_grad()) wanted.push_back(t);
  const variable_list found = torch::autograd::grad(results, wanted, given, std::nullopt, true, true);
  variable_list gradients(aliases.size());
  size_t next = 0;
  for (size_t i = 0; i < aliases.size(); i++)
    if (aliases[i].defined() && aliases[i].requires_grad()) gradients[i] = found[next++];
  return gradients;
}

struct Layer : torch::autograd::Function<Layer> {
  static variable_list forward(torch::autograd::AutogradContext* ctx, const Tensor& input, const Tensor& hx, const OptionalTensor& cx,
                               const Tensor& w_ih, const Tensor& w_hh, const OptionalTensor& b_ih, const OptionalTensor& b_hh, int64_t kind,
                               bool reverse) {
    const auto [output, hy, cy, cells, workspace] =
        record_layer<Forward>(input, hx, cx, w_ih, w_hh, b_ih, b_hh, kCells[kind].name, reverse);
    auto plain = [](const OptionalTensor& t) { return t.value_or(Tensor()); };
    ctx->save_for_backward({input, hx, plain(cx), w_ih, w_hh, plain(b_ih), plain(b_hh), output, cells, workspace});
    ctx->saved_data["kind"] = kind;
    ctx->saved_data["reverse"] = reverse;
    ctx->set_materialize_grads(false);
    if (!cy.defined()) return {output, hy};
    return {output, hy, cy};
  }

  static variable_list backward(torch::autograd::AutogradContext* ctx, variable_list grads) {
    constexpr size_t tensors = 7, arguments = 9;
    const variable_list saved = ctx->get_saved_variables();
    const Cell& cell = kCells[ctx->saved_data["kind"].toInt()];
    const bool reverse = ctx->saved_data["reverse"].toBool();
    grads.resize(3);
    variable_list result(arguments);
    if (std::none_of(grads.begin(), grads.end(), [](const Tensor& g) { return g.defined(); })) return result;
    if (at::GradMode::is_enabled()) {
      result = differentiable_gradients(cell, {saved.begin(), saved.begin() + tensors}, reverse, grads);
      result.resize(arguments);
      return result;
    }
    std::tie(result[0], result[1], result[2], result[3], result[4], result[5], result[6]) =
        record_layer<Backward>(optional(grads[0]), optional(grads[1]), optional(grads[2]), saved[0], saved[1], optional(saved[2]), saved[3],
                               saved[4], saved[7], optional(saved[8]), optional(saved[9]), saved[5].defined(), cell.name, reverse);
    return result;
  }
};

// ---- all layers ----

// Whether these arguments are what the operators above take: shapes that fit, one dtype, nothing that wants to see the
// operators of each step.
bool fits(const Cell& cell, const Tensor& input, at::ArrayRef<Tensor> states, at::TensorList params, bool has_biases, int64_t layers,
          bool bidirectional) {
  using c10::DispatchKey;
  if (at::autocast::is_autocast_enabled(at::kPrivateUse1) ||
      c10::impl::tls_is_dispatch_key_included(DispatchKey::FuncTorchDynamicLayerFrontMode) ||
      c10::impl::tls_is_dispatch_key_included(DispatchKey::FuncTorchDynamicLayerBackMode))
    return false;
  auto usual = [&](const Tensor& t) {
    return is_tiny(t) && t.device() == input.device() && t.scalar_type() == input.scalar_type() && !t.key_set().has(DispatchKey::Python) &&
           !t._fw_grad(0).defined();
  };
  if (!usual(input) || !at::isFloatingType(input.scalar_type()) || input.dim() != 3 || input.numel() == 0) return false;
  if (!std::all_of(states.begin(), states.end(), usual) || !std::all_of(params.begin(), params.end(), usual)) return false;
  const int64_t directions = bidirectional ? 2 : 1, each = has_biases ? 4 : 2;
  if (states[0].dim() != 3 || states[0].size(2) == 0 || static_cast<int64_t>(params.size()) != layers * directions * each) return false;
  const int64_t width = states[0].size(2), rows = cell.gates * width;
  for (const Tensor& state : states)
    if (state.sizes() != states[0].sizes() || state.size(0) != layers * directions) return false;
  for (int64_t i = 0; i < layers * directions; i++) {
    const int64_t given = i < directions ? input.size(2) : width * directions;
    const Tensor* p = &params[i * each];
    if (p[0].sizes() != at::IntArrayRef({rows, given}) || p[1].sizes() != at::IntArrayRef({rows, width})) return false;
    if (has_biases && (p[2].sizes() != at::IntArrayRef({rows}) || p[3].sizes() != at::IntArrayRef({rows}))) return false;
  }
  return true;
}

// Output and last states. `states` are those before the first step, of all layers.
variable_list all_layers(Kind kind, const Tensor& input, at::ArrayRef<Tensor> states, at::TensorList params, bool has_biases,
                         int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  const int64_t directions = bidirectional ? 2 : 1, each = has_biases ? 4 : 2;
  Tensor output = (batch_first ? input.transpose(0, 1) : input).contiguous();
  std::vector<variable_list> before, after(states.size());
  for (const Tensor& state : states) before.push_back(state.unbind(0));
  for (int64_t layer = 0; layer < layers; layer++) {
    variable_list outputs;
    for (int64_t direction = 0; direction < directions; direction++) {
      const int64_t i = layer * directions + direction;
      const Tensor* p = &params[i * each];
      auto given = [](bool is_given, const Tensor& t) { return is_given ? OptionalTensor(t) : std::nullopt; };
      const variable_list made = Layer::apply(output, before[0][i], given(states.size() > 1, before.back()[i]), p[0], p[1],
                                              given(has_biases, p[has_biases ? 2 : 0]), given(has_biases, p[has_biases ? 3 : 0]),
                                              static_cast<int64_t>(kind), direction == 1);
      outputs.push_back(made[0]);
      for (size_t s = 0; s < states.size(); s++) after[s].push_back(made[1 + s]);
    }
    output = directions == 1 ? outputs[0] : at::cat(outputs, 2);
    if (dropout != 0 && train && layer + 1 < layers) output = at::dropout(output, dropout, true);
  }
  variable_list results{batch_first ? output.transpose(0, 1) : output};
  for (const variable_list& state : after) results.push_back(at::stack(state, 0));
  return results;
}

// On the CPU, zeros of the same sizes.
Tensor stand_in(const Tensor& t) {
  return is_tiny(t) ? at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kCPU)).zero_() : t;
}
variable_list stand_ins(at::TensorList tensors) {
  variable_list result;
  for (const Tensor& t : tensors) result.push_back(stand_in(t));
  return result;
}

// What PyTorch's kernel returns. What it refuses is refused in the CPU's words, which has other kernels in places.
template <class Kernel, class OnCpu>
auto walked(Kernel kernel, OnCpu on_cpu) {
  try {
    return kernel();
  } catch (const c10::Error&) {
    at::NoGradGuard no_grad;
    on_cpu();
    throw;
  }
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases, int64_t layers,
                                        double dropout, bool train, bool bidirectional, bool batch_first) {
  if (hx.size() != 2 || !fits(kCells[Lstm], input, hx, params, has_biases, layers, bidirectional) ||
      hx[0].size(1) != input.size(!batch_first))
    return walked([&] { return at::native::lstm(input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first); },
                  [&] {
                    at::native::lstm(stand_in(input), stand_ins(hx), stand_ins(params), has_biases, layers, 0, train, bidirectional,
                                     batch_first);
                  });
  const variable_list results = all_layers(Lstm, input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first);
  return {results[0], results[1], results[2]};
}

template <Kind kind>
std::tuple<Tensor, Tensor> with_one_state(const Tensor& input, const Tensor& hx, at::TensorList params, bool has_biases, int64_t layers,
                                          double dropout, bool train, bool bidirectional, bool batch_first) {
  const Cell& cell = kCells[kind];
  if (!fits(cell, input, hx, params, has_biases, layers, bidirectional) || hx.size(1) != input.size(!batch_first))
    return walked(
        [&] { return cell.walk(input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first); },
        [&] { cell.walk(stand_in(input), stand_in(hx), stand_ins(params), has_biases, layers, 0, train, bidirectional, batch_first); });
  const variable_list results = all_layers(kind, input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first);
  return {results[0], results[1]};
}

void register_layers(torch::Library& m) {
  m.impl("lstm.input", TORCH_FN(lstm));
  m.impl("gru.input", TORCH_FN(with_one_state<Gru>));
  m.impl("rnn_tanh.input", TORCH_FN(with_one_state<Tanh>));
  m.impl("rnn_relu.input", TORCH_FN(with_one_state<Relu>));
}

}  // namespace

TORCH_LIBRARY(tiny, m) {
  m.def(kForward);
  m.def(kBackward);
}

TORCH_LIBRARY_IMPL(tiny, Meta, m) {
  m.impl("recurrent_layer", TORCH_FN(forward_meta));
  m.impl("recurrent_layer_backward", TORCH_FN(backward_meta));
}

TORCH_LIBRARY_IMPL(aten, Meta, m) {
  if (!has_meta("aten::_thnn_fused_gru_cell")) m.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell_meta));
  if (!has_meta("aten::_thnn_fused_gru_cell_backward")) m.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward_meta));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_layers(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { register_layers(m); }

}  // namespace tiny
