// Pseudo-inverses and ranks on hardware without float64: PyTorch makes tensors of that type for their tolerances, in
// functions that ask no backend. Here they are of the matrix's own type.

#include <ATen/CompositeImplicitAutogradFunctions.h>
#include <ATen/Functions.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "device/types.h"

namespace tiny {
namespace {

using at::Tensor;
namespace plain = at::compositeimplicitautograd;

Tensor number(const Tensor& like, double value) {
  return at::full({}, value, like.options().dtype(c10::toRealValueType(like.scalar_type())));
}

// What a singular value must exceed relative to the largest, where nobody says.
double usual(const Tensor& matrix) {
  const auto eps = std::numeric_limits<float>::epsilon();
  return static_cast<double>(eps) * static_cast<double>(std::max(matrix.size(-1), matrix.size(-2)));
}

Tensor pinv(const Tensor& matrix, double rcond, bool hermitian) {
  if (!lacks(at::kDouble)) return plain::linalg_pinv(matrix, rcond, hermitian);
  return at::linalg_pinv(matrix, number(matrix, 0), number(matrix, rcond), hermitian);
}

Tensor pinv_of_tensor(const Tensor& matrix, const Tensor& rcond, bool hermitian) {
  if (!lacks(at::kDouble)) return plain::linalg_pinv(matrix, rcond, hermitian);
  return at::linalg_pinv(matrix, number(matrix, 0), rcond, hermitian);
}

Tensor rank(const Tensor& matrix, double tol, bool hermitian) {
  if (!lacks(at::kDouble)) return plain::linalg_matrix_rank(matrix, tol, hermitian);
  return at::linalg_matrix_rank(matrix, number(matrix, tol), number(matrix, 0), hermitian);
}

Tensor rank_of_numbers(const Tensor& matrix, std::optional<double> atol, std::optional<double> rtol, bool hermitian) {
  if (!lacks(at::kDouble) || matrix.dim() < 2) return plain::linalg_matrix_rank(matrix, atol, rtol, hermitian);
  const double absolute = atol.value_or(0);
  const double relative = rtol.value_or(absolute > 0 ? 0 : usual(matrix));
  return at::linalg_matrix_rank(matrix, number(matrix, absolute), number(matrix, relative), hermitian);
}

Tensor rank_of_tensors(const Tensor& matrix, const std::optional<Tensor>& atol, const std::optional<Tensor>& rtol, bool hermitian) {
  if (!lacks(at::kDouble) || matrix.dim() < 2 || (atol && rtol)) {
    return plain::linalg_matrix_rank(matrix, atol, rtol, hermitian);
  }
  const Tensor absolute = atol ? *atol : number(matrix, 0);
  const Tensor chosen = number(matrix, usual(matrix));
  const Tensor relative = rtol ? *rtol : atol ? at::where(atol->gt(0), number(matrix, 0), chosen) : chosen;
  return plain::linalg_matrix_rank(matrix, absolute, relative, hermitian);
}

void register_tolerances(torch::Library& m) {
  m.impl("linalg_pinv", pinv);
  m.impl("linalg_pinv.rcond_tensor", pinv_of_tensor);
  m.impl("linalg_matrix_rank", rank);
  m.impl("linalg_matrix_rank.atol_rtol_float", rank_of_numbers);
  m.impl("linalg_matrix_rank.atol_rtol_tensor", rank_of_tensors);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { register_tolerances(m); }
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_tolerances(m); }

}  // namespace tiny
