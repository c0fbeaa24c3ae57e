// torch.autocast("tiny"): the lists of operators that PyTorch keeps for accelerators.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace at {  // whose macros name its types
namespace {

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION)
#undef LOWER_PRECISION
#define SINGLE_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(SINGLE_PRECISION)
#undef SINGLE_PRECISION
#define SINGLE_PRECISION_BY_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(SINGLE_PRECISION_BY_DTYPE)
#undef SINGLE_PRECISION_BY_DTYPE
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(WIDEST)
#undef WIDEST
}

}  // namespace
}  // namespace at
