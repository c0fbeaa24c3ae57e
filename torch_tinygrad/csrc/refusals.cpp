// Operators whose CPU kernels look at values before they compute, and refuse some: these look as well.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/one_hot_native.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include "indices.h"
#include "recorder.h"

namespace tiny {
namespace {

at::Tensor one_hot(const at::Tensor& self, int64_t classes) {
  const int64_t most = classes == -1 ? Range::kMost : classes - 1;
  if (self.scalar_type() == at::kLong && self.numel() > 0 && !values_within(self, 0, most)) at::one_hot(self.to(at::kCPU), classes);
  return at::native::one_hot(self, classes);
}

// Whether probabilities are finite, none is negative, and each row has some.
bool are_probabilities(const at::Tensor& self) {
  DeviceLock lock;
  const at::Tensor values = on_host(self, "the values of probabilities");
  const auto [least, most] = at::aminmax(values);
  return least.item().toDouble() >= 0 && most.item().toDouble() < std::numeric_limits<double>::infinity() &&
         at::sum(values, {-1}).min().item().toDouble() > 0;
}

void check_probabilities(const at::Tensor& self, int64_t count, bool replacement) {
  if (self.is_floating_point() && self.dim() > 0 && self.numel() > 0 && !are_probabilities(self))
    at::multinomial(self.to(at::kCPU), count, replacement, at::detail::createCPUGenerator());
}

at::Tensor multinomial(const at::Tensor& self, int64_t count, bool replacement, std::optional<at::Generator> generator) {
  check_probabilities(self, count, replacement);
  torch::jit::Stack stack;
  torch::jit::push(stack, self, count, replacement, generator);
  record_op("aten::multinomial", "", stack);
  return stack[0].toTensor();
}

at::Tensor& multinomial_out(const at::Tensor& self, int64_t count, bool replacement, std::optional<at::Generator> generator,
                            at::Tensor& out) {
  check_probabilities(self, count, replacement);
  torch::jit::Stack stack;
  torch::jit::push(stack, self, count, replacement, generator, out);
  record_op("aten::multinomial", "out", stack);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("one_hot", one_hot);
  m.impl("multinomial", multinomial);
  m.impl("multinomial.out", multinomial_out);
}

}  // namespace tiny
