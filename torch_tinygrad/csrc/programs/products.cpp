// Matrix products by oneDNN. PyTorch's go to MKL, which on processors of other makers than Intel is the slower of the two:
// 200 GFLOP/s of square matrices where oneDNN reaches 220, and 120 of (512, 64) by (64, 4608) where it reaches 210.
#include "programs/products.h"

#include <ATen/Context.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

namespace at::native {
// result = beta * result + alpha * a @ b. PyTorch exports it, declares it in no header that it installs, and builds it where
// it has oneDNN. With a beta other than 0 it may crash (torch 2.13: (1, 1536) by (1536, 384) in columns), with an alpha of 0
// it leaves the result as it is: so both are plain here.
__attribute__((weak)) void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);
}  // namespace at::native

namespace tiny {
namespace {

// Multiplies, if it can be done here. oneDNN writes rows: a result that lies in columns is the transposed product of the
// transposed factors.
bool multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  if (at::native::mkldnn_matmul == nullptr || !at::globalContext().userEnabledMkldnn() || out.scalar_type() != at::kFloat) return false;
  if (out.is_contiguous()) {
    at::native::mkldnn_matmul(a, b, out, 0, 1);
  } else if (out.mT().is_contiguous()) {
    at::native::mkldnn_matmul(b.mT(), a.mT(), out.mT(), 0, 1);
  } else {
    return false;
  }
  return true;
}

at::Tensor& mm(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) { return multiply(a, b, out) ? out : at::mm_out(out, a, b); }
at::Tensor& bmm(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) { return multiply(a, b, out) ? out : at::bmm_out(out, a, b); }

// ATen's schemas, so that a step of a program is either.
TORCH_LIBRARY_FRAGMENT(tiny, m) {
  m.def("mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("bmm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(tiny, CPU, m) {
  m.impl("mm.out", &mm);
  m.impl("bmm.out", &bmm);
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
