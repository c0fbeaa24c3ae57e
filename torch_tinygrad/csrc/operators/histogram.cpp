// Histograms of integers. The CPU has none, but accelerators do, and libraries ask the device's name to know: transformers
// counts the tokens of each expert so on everything that is not called "cpu".
#include <ATen/ops/histc.h>
#include <torch/library.h>

#include "record/recorder.h"

namespace tiny {
namespace {

at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  if (c10::isIntegralType(self.scalar_type(), /*includeBool=*/false))
    return at::histc(self.to(at::kDouble), bins, min, max).to(self.scalar_type());
  torch::jit::Stack stack;
  torch::jit::push(stack, self, bins, min, max);
  record_op("aten::histc", "", stack);
  return stack[0].toTensor();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("histc", histc); }

}  // namespace
}  // namespace tiny
