// The CPU's fused attention on PyTorch's CUDA kernels, where those run on the device's memory: what is recorded is the same
// operator everywhere, with the same results.
#include <ATen/TensorOperators.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

namespace tiny {
namespace {

using at::Tensor;

enum class Way { Flash, Efficient, Cudnn, Plain };

bool lies_plainly(const Tensor& t) { return t.stride(-1) == 1; }

// What PyTorch itself would choose (it asks the user's switches and the card), where its kernel takes these operands. Both
// passes of a call come to the same.
Way way_for(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, bool causal,
            std::optional<double> scale) {
  const int64_t size = q.size(-1);
  const bool is_even = size % 8 == 0 && v.size(-1) == size && lies_plainly(q) && lies_plainly(k) && lies_plainly(v);
  if (!is_even || mask || q.numel() == 0 || k.numel() == 0) return Way::Plain;
  const bool has_groups = q.size(1) != k.size(1);
  switch (static_cast<at::SDPBackend>(at::_fused_sdp_choice(q, k, v, std::nullopt, 0.0, causal, scale, has_groups))) {
    case at::SDPBackend::flash_attention:
      return Way::Flash;
    case at::SDPBackend::cudnn_attention:
      return size <= 128 ? Way::Cudnn : Way::Flash;  // whose gradient takes larger heads too
    case at::SDPBackend::efficient_attention:
      return has_groups ? Way::Plain : Way::Efficient;
    default:
      return Way::Plain;
  }
}

double scale_of(const Tensor& q, std::optional<double> scale) { return scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(-1)))); }

at::ScalarType wide(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype; }

Tensor per_head(const Tensor& t, int64_t heads) { return t.size(1) == heads ? t : t.repeat_interleave(heads / t.size(1), 1); }

Tensor scores_of(const Tensor& q, const Tensor& k, bool causal, const std::optional<Tensor>& mask, std::optional<double> scale) {
  const auto type = wide(q.scalar_type());
  Tensor scores = at::matmul(q.to(type), per_head(k, q.size(1)).to(type).transpose(-2, -1)).mul_(scale_of(q, scale));
  if (causal) {
    const auto rows = at::arange(q.size(-2), q.options().dtype(at::kLong)).unsqueeze(1);
    const auto columns = at::arange(k.size(-2), q.options().dtype(at::kLong));
    scores.masked_fill_(columns.gt(rows), -std::numeric_limits<double>::infinity());
  }
  if (mask)
    scores = mask->scalar_type() == at::kBool ? scores.masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity())
                                              : scores.add_(*mask);
  return scores;
}

std::tuple<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v, double dropout, bool causal,
                                   const std::optional<Tensor>& mask, std::optional<double> scale) {
  switch (way_for(q, k, v, mask, causal, scale)) {
    case Way::Flash: {
      auto made = at::_scaled_dot_product_flash_attention(q, k, v, dropout, causal, /*return_debug_mask=*/false, scale);
      return {std::get<0>(made), std::get<1>(made)};
    }
    case Way::Cudnn: {
      auto made = at::_scaled_dot_product_cudnn_attention(q, k, v, std::nullopt, /*compute_log_sumexp=*/true, dropout, causal,
                                                          /*return_debug_mask=*/false, scale);
      return {std::get<0>(made), std::get<1>(made).view({q.size(0), q.size(1), q.size(2)})};
    }
    case Way::Efficient: {
      auto made = at::_scaled_dot_product_efficient_attention(q, k, v, std::nullopt, /*compute_log_sumexp=*/true, dropout, causal, scale);
      return {std::get<0>(made), std::get<1>(made).narrow(2, 0, q.size(2))};
    }
    default: {
      const Tensor scores = scores_of(q, k, causal, mask, scale);
      Tensor sums = at::logsumexp(scores, {-1});
      sums.masked_fill_(sums.isinf(), 0);  // rows in which everything is masked: their weights are all 0
      const Tensor weights = scores.sub(sums.unsqueeze(-1)).exp_();
      return {at::matmul(weights, per_head(v, q.size(1)).to(weights.scalar_type())).to(q.scalar_type()), sums};
    }
  }
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                            const Tensor& sums, double dropout, bool causal, const std::optional<Tensor>& mask,
                                            std::optional<double> scale) {
  switch (way_for(q, k, v, mask, causal, scale)) {
    case Way::Flash: {
      const Tensor state = at::zeros({2}, q.options().dtype(at::kUInt64)), nothing = at::zeros({}, q.options().dtype(at::kUInt64));
      return at::_scaled_dot_product_flash_attention_backward(grad, q, k, v, out, sums.contiguous(), {}, {}, q.size(2), k.size(2), dropout,
                                                              causal, state, nothing, scale);
    }
    case Way::Cudnn: {
      const Tensor state = at::zeros({}, q.options().dtype(at::kLong)), nothing;
      return at::_scaled_dot_product_cudnn_attention_backward(grad, q, k, v, out, sums.contiguous().unsqueeze(-1), state, state, nothing,
                                                              nothing, nothing, q.size(2), k.size(2), dropout, causal, scale);
    }
    case Way::Efficient: {
      const int64_t missing = (32 - q.size(2) % 32) % 32;
      const Tensor padded = at::constant_pad_nd(sums.contiguous(), {0, missing}, std::numeric_limits<double>::infinity());
      const Tensor none = at::zeros({}, at::TensorOptions().dtype(at::kLong));
      auto made = at::_scaled_dot_product_efficient_attention_backward(grad, q, k, v, Tensor(), out, padded, none, none, dropout,
                                                                       {true, true, true, false}, causal, scale);
      return {std::get<0>(made), std::get<1>(made), std::get<2>(made)};
    }
    default: {
      const auto type = wide(q.scalar_type());
      const int64_t heads = q.size(1), group = heads / k.size(1);
      const Tensor weights = scores_of(q, k, causal, mask, scale).sub_(sums.unsqueeze(-1)).exp_();
      const Tensor above = grad.to(type);
      auto merged = [&](const Tensor& t, const Tensor& like) {  // heads that share a key are summed
        return (group == 1 ? t : t.reshape({t.size(0), like.size(1), group, t.size(2), t.size(3)}).sum(2)).to(like.scalar_type());
      };
      const Tensor grad_v = at::matmul(weights.transpose(-2, -1), above);
      const Tensor inner = at::matmul(above, per_head(v, heads).to(type).transpose(-2, -1));
      const Tensor grad_scores = inner.sub_(above.mul(out.to(type)).sum(-1, true)).mul_(weights).mul_(scale_of(q, scale));
      return {at::matmul(grad_scores, per_head(k, heads).to(type)).to(q.scalar_type()),
              merged(at::matmul(grad_scores.transpose(-2, -1), q.to(type)), k), merged(grad_v, v)};
    }
  }
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_scaled_dot_product_flash_attention_for_cpu", &forward);
  m.impl("_scaled_dot_product_flash_attention_for_cpu_backward", &backward);
}

}  // namespace
}  // namespace tiny
