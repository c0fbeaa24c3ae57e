// Exponentials of matrices in half types: ATen's kernel has no bounds for their rounding and gives NaN (torch 2.13).
#include <ATen/ops/linalg_matrix_exp.h>
#include <torch/library.h>

#include "record/recorder.h"

namespace tiny {
namespace {

at::Tensor matrix_exp(const at::Tensor& self) {
  if (c10::isReducedFloatingType(self.scalar_type())) return at::linalg_matrix_exp(self.to(at::kFloat)).to(self.scalar_type());
  torch::jit::Stack stack;
  torch::jit::push(stack, self);
  record_op("aten::linalg_matrix_exp", "", stack);
  return stack[0].toTensor();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("linalg_matrix_exp", matrix_exp); }

}  // namespace
}  // namespace tiny
