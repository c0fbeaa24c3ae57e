// Convolutions under torch.jit.trace, which notes no `convolution` but the `_convolution` that PyTorch's own kernel calls.
#include <ATen/TracerMode.h>
#include <torch/library.h>

#include "record/recorder.h"

namespace tiny {
namespace {

void convolution(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!at::tracer::impl::is_dispatch_enabled()) return record(op, stack);
  static const auto traced = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_convolution", "");
  torch::jit::push(*stack, /*benchmark=*/false, /*deterministic=*/false, /*cudnn_enabled=*/true, /*allow_tf32=*/true);
  traced.callBoxed(stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&convolution>()); }

}  // namespace tiny
