// Attention takes the CPU's choice between its fused kernel and plain mathematics, so that results lie in memory as there.
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/from_blob.h>

namespace at::native {
namespace {

// The choice looks at geometry, dtype and whether a gradient is wanted: these have no elements behind them.
Tensor on_the_cpu(const Tensor& t) {
  static char nothing;
  return at::from_blob(&nothing, t.sizes(), t.strides(), TensorOptions().dtype(t.dtype())).set_requires_grad(t.requires_grad());
}

int64_t choice_of_the_cpu(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout,
                          bool causal, std::optional<double> scale, bool grouped) {
  std::optional<Tensor> mask_on_cpu;
  if (mask.has_value() && mask->defined()) mask_on_cpu = on_the_cpu(*mask);
  return at::_fused_sdp_choice(on_the_cpu(query), on_the_cpu(key), on_the_cpu(value), mask_on_cpu, dropout, causal, scale, grouped);
}

}  // namespace

REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &choice_of_the_cpu)

}  // namespace at::native
