#include "infer/shape_rules.h"

#include <ATen/native/Pool.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace tiny {
namespace {

using Results = std::optional<std::vector<Sizes>>;
using Tensors = c10::ArrayRef<at::Tensor>;
using Arguments = c10::ArrayRef<c10::IValue>;
using Rule = Results (*)(Tensors, Arguments);

Sizes sizes_of(const at::Tensor& t) { return {t.sizes().begin(), t.sizes().end()}; }

// Each result is as large as this tensor argument.
template <int... arguments>
Results as_large_as(Tensors tensors, Arguments) {
  if (tensors.size() <= std::max({arguments...})) return std::nullopt;
  return std::vector<Sizes>{sizes_of(tensors[arguments])...};
}

// The product of the last two matrices, or of batches of them; before them may stand what it is added to.
template <int before, int rank>
Results product(Tensors tensors, Arguments) {
  if (tensors.size() != before + 2) return std::nullopt;
  const at::Tensor &a = tensors[before], &b = tensors[before + 1];
  if (a.dim() != rank || b.dim() != rank || a.size(-1) != b.size(-2) || (rank == 3 && a.size(0) != b.size(0))) return std::nullopt;
  Sizes sizes = sizes_of(a);
  sizes.back() = b.size(-1);
  for (int i = 0; i < before; i++) {
    const at::Tensor& added = tensors[i];
    if (added.dim() > rank) return std::nullopt;
    for (int64_t d = 1; d <= added.dim(); d++)
      if (added.size(-d) != 1 && added.size(-d) != sizes[rank - d]) return std::nullopt;
  }
  return std::vector<Sizes>{sizes};
}

Results layer_norm(Tensors tensors, Arguments args) {
  const auto normalized = args[1].toIntVector();
  const at::Tensor& input = tensors[0];
  const int64_t outer = input.dim() - static_cast<int64_t>(normalized.size());
  if (outer < 0 || !std::equal(normalized.begin(), normalized.end(), input.sizes().begin() + outer)) return std::nullopt;
  for (size_t i = 1; i < tensors.size(); i++)
    if (tensors[i].sizes() != at::IntArrayRef(normalized)) return std::nullopt;
  Sizes statistics = sizes_of(input);
  std::fill(statistics.begin() + outer, statistics.end(), 1);
  return std::vector<Sizes>{sizes_of(input), statistics, statistics};
}

// Gradients of the input and of the parameters, which come after the statistics.
Results layer_norm_backward(Tensors tensors, Arguments) {
  if (tensors.size() != 6 || tensors[0].sizes() != tensors[1].sizes()) return std::nullopt;
  return std::vector<Sizes>{sizes_of(tensors[1]), sizes_of(tensors[4]), sizes_of(tensors[5])};
}

Results embedding(Tensors tensors, Arguments) {
  Sizes sizes = sizes_of(tensors[1]);
  sizes.push_back(tensors[0].size(1));
  return std::vector<Sizes>{sizes};
}

// Which dimensions a list names; none where one is not there, or is named twice.
std::optional<std::vector<bool>> named(const at::Tensor& tensor, at::IntArrayRef dims) {
  std::vector<bool> found(tensor.dim());
  for (int64_t d : dims) {
    if (d < -tensor.dim() || d >= tensor.dim()) return std::nullopt;
    const int64_t dim = d < 0 ? d + tensor.dim() : d;
    if (found[dim]) return std::nullopt;
    found[dim] = true;
  }
  return found;
}

Results flip(Tensors tensors, Arguments args) {
  if (!named(tensors[0], args[1].toIntVector())) return std::nullopt;
  return std::vector<Sizes>{sizes_of(tensors[0])};
}

Results roll(Tensors tensors, Arguments args) {
  const auto dims = args[2].toIntVector();
  if (dims.size() != args[1].toIntVector().size() || !named(tensors[0], dims)) return std::nullopt;
  return std::vector<Sizes>{sizes_of(tensors[0])};
}

// Over dimensions that are the second argument, or over all; whether they stay, with one element, is the third.
Results reduction(Tensors tensors, Arguments args) {
  const at::Tensor& input = tensors[0];
  std::vector<bool> reduced(input.dim(), true);
  if (!args[1].isNone() && !args[1].toIntVector().empty()) {
    const auto dims = named(input, args[1].toIntVector());
    if (!dims) return std::nullopt;
    reduced = *dims;
  }
  Sizes sizes;
  for (int64_t d = 0; d < input.dim(); d++) {
    if (reduced[d] && input.size(d) == 0) return std::nullopt;
    if (!reduced[d]) sizes.push_back(input.size(d));
    if (reduced[d] && args[2].toBool()) sizes.push_back(1);
  }
  return std::vector<Sizes>{sizes};
}

Results gradient_of_softmax(Tensors tensors, Arguments) {
  if (tensors[0].sizes() != tensors[1].sizes()) return std::nullopt;
  return std::vector<Sizes>{sizes_of(tensors[0])};
}

// Of windows over the last two dimensions. What a list leaves out its first number stands for; strides may be missing.
template <int ceil_mode, int results>
Results pool(Tensors tensors, Arguments args) {
  const at::Tensor& input = tensors[0];
  if (input.dim() != 3 && input.dim() != 4) return std::nullopt;
  const std::vector<int64_t> windows = args[1].toIntVector(), steps = args[2].toIntVector(), pads = args[3].toIntVector();
  const std::vector<int64_t> dilations = ceil_mode == 5 ? args[4].toIntVector() : std::vector<int64_t>{1};
  for (const auto* list : {&windows, &steps, &pads, &dilations})
    if (list->size() > 2 || (list->empty() && list != &steps)) return std::nullopt;
  Sizes sizes = sizes_of(input);
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return std::nullopt;
  for (int d = 0; d < 2; d++) {
    auto at = [d](const std::vector<int64_t>& list) { return d == 0 ? list.front() : list.back(); };
    const int64_t window = at(windows), step = steps.empty() ? window : at(steps), pad = at(pads), dilation = at(dilations);
    if (window < 1 || step < 1 || dilation < 1 || pad < 0 || pad > window / 2) return std::nullopt;
    int64_t& size = sizes[sizes.size() - 2 + d];
    size = at::native::pooling_output_shape<int64_t>(size, window, pad, step, dilation, args[ceil_mode].toBool());
    if (size < 1) return std::nullopt;
  }
  return std::vector<Sizes>(results, sizes);
}

const std::unordered_map<std::string_view, Rule>& table() {
  static const auto* rules = new std::unordered_map<std::string_view, Rule>{
      {"aten::mm", product<0, 2>},
      {"aten::bmm", product<0, 3>},
      {"aten::addmm", product<1, 2>},
      {"aten::baddbmm", product<1, 3>},
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::native_dropout", as_large_as<0, 0>},
      {"aten::_softmax", as_large_as<0>},
      {"aten::_safe_softmax", as_large_as<0>},
      {"aten::_log_softmax", as_large_as<0>},
      {"aten::_softmax_backward_data", gradient_of_softmax},
      {"aten::_log_softmax_backward_data", gradient_of_softmax},
      {"aten::embedding", embedding},
      {"aten::max_pool2d_with_indices", pool<5, 2>},
      {"aten::avg_pool2d", pool<4, 1>},
      {"aten::roll", roll},
      {"aten::flip", flip},
      {"aten::sum.dim_IntList", reduction},
      {"aten::mean.dim", reduction},
      {"aten::amax", reduction},
      {"aten::amin", reduction},
  };
  return *rules;
}

}  // namespace

std::optional<std::vector<Sizes>> result_sizes(const OpInfo& info, Tensors tensors, Arguments args) {
  const auto rule = table().find(info.name);
  if (rule == table().end() || tensors.empty()) return std::nullopt;
  const bool is_product = tensors.size() >= 2 && rule->first.find("mm") != std::string_view::npos;
  auto is_plain = [](const at::Tensor& t) { return t.is_contiguous(); };
  // Products are contiguous whatever their factors are; everything else follows its arguments.
  if (!is_product && !std::all_of(tensors.begin(), tensors.end(), is_plain)) return std::nullopt;
  return rule->second(tensors, args);
}

std::optional<Inferred> resized(Inferred inferred, const std::vector<Sizes>& sizes) {
  if (inferred.returns.size() != sizes.size()) return std::nullopt;
  for (size_t i = 0; i < sizes.size(); i++) {
    if (inferred.returns[i].is_value || inferred.returns[i].is_list) return std::nullopt;
    Inferred::Result& result = inferred.returns[i].tensors[0];
    if (result.kind == Inferred::Result::Kind::Undefined) continue;
    if (result.kind != Inferred::Result::Kind::Fresh) return std::nullopt;
    result.shape.sizes = sizes[i];
    const auto strides = c10::contiguous_strides(sizes[i]);
    result.shape.strides.assign(strides.begin(), strides.end());
  }
  return inferred;
}

}  // namespace tiny
