// Factorizations that refuse matrices: the device computes them with a number for each that says how it went, and where a
// caller wants an error for that the numbers are read.
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/cholesky.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/ones.h>
#include <torch/library.h>

#include "record/recorder.h"

namespace tiny {
namespace {

struct Checked {
  const char *op, *overload, *says;
};

// Those whose last result is that number.
constexpr Checked kChecked[] = {
    {"linalg_cholesky_ex", "", "linalg.cholesky_ex"},
    {"linalg_cholesky_ex", "L", "linalg.cholesky_ex"},
    {"linalg_inv_ex", "", "linalg.inv_ex"},
    {"linalg_inv_ex", "inverse", "linalg.inv_ex"},
    {"linalg_lu_factor_ex", "", "torch.linalg.lu_factor_ex"},
    {"linalg_lu_factor_ex", "out", "torch.linalg.lu_factor_ex"},
    {"linalg_ldl_factor_ex", "", "torch.linalg.ldl_factor_ex"},
    {"linalg_ldl_factor_ex", "out", "torch.linalg.ldl_factor_ex"},
    {"_linalg_solve_ex", "", "torch.linalg.solve"},
    {"_linalg_solve_ex", "result", "torch.linalg.solve"},
};

template <size_t kRow>
void factorize(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t base = stack->size() - op.schema().arguments().size();
  c10::IValue& check = (*stack)[base + *op.schema().argumentIndexWithName("check_errors")];
  const bool checks = check.toBool(), is_matrix = (*stack)[base].toTensor().dim() == 2;
  check = false;
  record(op, stack);
  if (checks) at::_linalg_check_errors(stack->back().toTensor(), kChecked[kRow].says, is_matrix);
}

at::Tensor checked_cholesky(const at::Tensor& self, bool upper) {
  at::cholesky(at::ones({1, 1}));  // says that it is deprecated
  at::native::squareCheckInputs(self, "cholesky");
  const auto [factor, info] = at::linalg_cholesky_ex(self, upper);
  at::_linalg_check_errors(info, "cholesky", self.dim() == 2);
  return factor;
}

at::Tensor& checked_cholesky_out(const at::Tensor& self, bool upper, at::Tensor& out) {
  const at::Tensor factor = checked_cholesky(self, upper);
  at::native::resize_output(out, factor.sizes());
  return out.copy_(factor);
}

template <size_t... kRows>
void register_all(torch::Library& m, std::index_sequence<kRows...>) {
  auto add = [&](const Checked& row, torch::CppFunction&& kernel) {
    const std::string overload = row.overload;
    m.impl((overload.empty() ? row.op : row.op + ("." + overload)).c_str(), std::move(kernel));
  };
  (add(kChecked[kRows], torch::CppFunction::makeFromBoxedFunction<&factorize<kRows>>()), ...);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_all(m, std::make_index_sequence<std::size(kChecked)>());
  m.impl("cholesky", checked_cholesky);
  m.impl("cholesky.out", checked_cholesky_out);
}

}  // namespace
}  // namespace tiny
