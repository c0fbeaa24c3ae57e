// Matrix products by oneDNN. PyTorch's go to MKL, which on processors of other makers than Intel is the slower of the two:
// 200 GFLOP/s of square matrices where oneDNN reaches 220, and 120 of (512, 64) by (64, 4608) where it reaches 210.
#include "products.h"

#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

namespace at::native {
// result = beta * result + alpha * a @ b. PyTorch exports it, declares it in no header that it installs, and builds it where
// it has oneDNN.
__attribute__((weak)) void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);
}  // namespace at::native

namespace tiny {
namespace {

// A factor of 0 leaves mkldnn_matmul's result as it was.
bool is_onednn_usable(const at::Tensor& out, const at::Scalar& alpha = 1) {
  return at::native::mkldnn_matmul != nullptr && at::globalContext().userEnabledMkldnn() && out.scalar_type() == at::kFloat &&
         (out.is_contiguous() || out.mT().is_contiguous()) && alpha.toFloat() != 0;
}

// oneDNN writes rows: a result that lies in columns is the transposed product of the transposed factors.
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta, float alpha) {
  if (out.is_contiguous()) {
    at::native::mkldnn_matmul(a, b, out, beta, alpha);
  } else {
    at::native::mkldnn_matmul(b.mT(), a.mT(), out.mT(), beta, alpha);
  }
}

at::Tensor& mm(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (!is_onednn_usable(out)) return at::mm_out(out, a, b);
  multiply(a, b, out, 0, 1);
  return out;
}

at::Tensor& bmm(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (!is_onednn_usable(out)) return at::bmm_out(out, a, b);
  multiply(a, b, out, 0, 1);
  return out;
}

void add_product(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta, const at::Scalar& alpha,
                 at::Tensor& out) {
  const float kept = beta.toFloat();
  if (kept != 0) out.copy_(self);  // expands it
  multiply(a, b, out, kept, alpha.toFloat());
}

at::Tensor& addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta, const at::Scalar& alpha,
                  at::Tensor& out) {
  if (!is_onednn_usable(out, alpha)) return at::addmm_out(out, self, a, b, beta, alpha);
  add_product(self, a, b, beta, alpha, out);
  return out;
}

at::Tensor& baddbmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta, const at::Scalar& alpha,
                    at::Tensor& out) {
  if (!is_onednn_usable(out, alpha)) return at::baddbmm_out(out, self, a, b, beta, alpha);
  add_product(self, a, b, beta, alpha, out);
  return out;
}

// ATen's schemas, so that a step of a program is either.
TORCH_LIBRARY_FRAGMENT(tiny, m) {
  m.def("mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("bmm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("addmm.out(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)");
  m.def("baddbmm.out(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(tiny, CPU, m) {
  m.impl("mm.out", &mm);
  m.impl("bmm.out", &bmm);
  m.impl("addmm.out", &addmm);
  m.impl("baddbmm.out", &baddbmm);
}

}  // namespace

bool onednn_multiplies_faster() {
#ifdef __x86_64__
  __builtin_cpu_init();
  return at::native::mkldnn_matmul != nullptr && !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

}  // namespace tiny
