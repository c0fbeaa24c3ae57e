// Products of small matrices by oneDNN's blocks, which PyTorch exports for its attention: a call costs a tenth of a
// microsecond, where a whole product of oneDNN's takes ten, and MKL, on processors of other makers, uses half of their width.
// One thread, microseconds by MKL → by blocks: (32, 64) by (64, 64): 3.3 → 1.0, (128, 64) by (64, 192): 28 → 11.3,
// (32, 256) by (256, 784): 122 → 49.
#include "programs/small_products.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <set>
#include <tuple>
#include <vector>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace at::native::cpublas {
// c = a @ b, in rows that are `ld` apart. Exported since PyTorch 2.7, with kernels for each shape that a thread has met.
__attribute__((weak)) void brgemm(int64_t m, int64_t n, int64_t k, int64_t ld_a, int64_t ld_b, int64_t ld_c, const bool add, const float* a,
                                  const float* b, float* c, bool is_vnni);
}  // namespace at::native::cpublas

namespace tiny {
namespace {

// Results that read an element of a matrix, from which on it is worth laying that out in rows; and where it has more
// elements than the first cache holds.
constexpr int64_t kReads = 16, kManyReads = 64, kNear = 1 << 14;
// Rows below which a product waits for the memory of its second factor, and is best left to MKL.
constexpr int64_t kRows = 4;
// Multiplications that are worth a thread of their own.
constexpr int64_t kThread = 1 << 20;
// Shapes a thread keeps kernels for: nobody ever forgets one.
constexpr size_t kShapes = 1024;

#ifdef __x86_64__
__attribute__((target("avx"))) void transpose_8x8(const float* from, int64_t ld_from, float* to, int64_t ld_to) {
  __m256 row[8], pair[8], quad[8];
  for (int i = 0; i < 8; i++) row[i] = _mm256_loadu_ps(from + i * ld_from);
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      quad[i + 2 * j] = _mm256_shuffle_ps(pair[i + j], pair[i + j + 2], 0x44);
      quad[i + 2 * j + 1] = _mm256_shuffle_ps(pair[i + j], pair[i + j + 2], 0xee);
    }
  for (int i = 0; i < 4; i++) {
    _mm256_storeu_ps(to + i * ld_to, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * ld_to, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31));
  }
}
#else
void transpose_8x8(const float*, int64_t, float*, int64_t) {}
#endif

// to[j][i] = from[i][j]
void transpose(int64_t rows, int64_t columns, const float* from, int64_t ld_from, float* to, int64_t ld_to) {
  const int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  for (int64_t i = 0; i < whole_rows; i += 8)
    for (int64_t j = 0; j < whole_columns; j += 8) transpose_8x8(from + i * ld_from + j, ld_from, to + j * ld_to + i, ld_to);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; j++) to[j * ld_to + i] = from[i * ld_from + j];
}

bool is_in_rows(const at::Tensor& t) { return t.stride(1) == 1 && t.stride(0) >= t.size(1); }

// A matrix as rows: as it lies, or, where it lies in columns, in `scratch`. Null where it lies otherwise, or where too few
// results read an element to make it worth while.
const float* in_rows(const at::Tensor& t, int64_t reads, std::vector<float>& scratch, int64_t& ld) {
  const float* data = t.const_data_ptr<float>();
  if (is_in_rows(t)) {
    ld = t.stride(0);
    return data;
  }
  if (!is_in_rows(t.t()) || reads < (t.numel() > kNear ? kManyReads : kReads)) return nullptr;
  ld = t.size(1);
  scratch.resize(t.numel());
  transpose(t.size(1), t.size(0), data, t.stride(1), scratch.data(), ld);
  return scratch.data();
}

bool has_room_for(int64_t m, int64_t n, int64_t k, int64_t ld_a, int64_t ld_b, int64_t ld_c) {
  thread_local std::set<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>> met;
  const auto shape = std::make_tuple(m, n, k, ld_a, ld_b, ld_c);
  if (met.count(shape) > 0) return true;
  return met.size() < kShapes && met.insert(shape).second;
}

// Multiplies into rows, if it can be done here.
bool multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  if (m < kRows || n < kRows || k < 1) return false;
  thread_local std::vector<float> scratch_a, scratch_b;
  int64_t ld_a, ld_b;
  const float* from_a = in_rows(a, n, scratch_a, ld_a);
  const float* from_b = from_a == nullptr ? nullptr : in_rows(b, m, scratch_b, ld_b);
  if (from_b == nullptr) return false;
  float* to = out.mutable_data_ptr<float>();
  const int64_t ld_out = out.stride(0), threads = std::min<int64_t>(at::get_num_threads(), m * n * k / kThread);
  const int64_t share = threads > 1 ? ((m + threads - 1) / threads + 15) / 16 * 16 : m;
  if (!has_room_for(m, n, k, ld_a, ld_b, ld_out)) return false;
  at::parallel_for(0, (m + share - 1) / share, 1, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * share; first < std::min(m, end * share); first += share)
      at::native::cpublas::brgemm(std::min(share, m - first), n, k, ld_a, ld_b, ld_out, false, from_a + first * ld_a, from_b,
                                  to + first * ld_out, false);
  });
  return true;
}

at::Tensor& small_mm(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  const bool may = multiplies_small_by_blocks() && at::globalContext().userEnabledMkldnn() && out.scalar_type() == at::kFloat;
  if (may && is_in_rows(out) && multiply(a, b, out)) return out;
  if (may && is_in_rows(out.t()) && multiply(b.t(), a.t(), out.t())) return out;
  return at::mm_out(out, a, b);
}

TORCH_LIBRARY_FRAGMENT(tiny, m) { m.def("small_mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)"); }

TORCH_LIBRARY_IMPL(tiny, CPU, m) { m.impl("small_mm.out", &small_mm); }

}  // namespace

bool multiplies_small_by_blocks() {
#ifdef __x86_64__
  static const bool does = [] {
    __builtin_cpu_init();
    return at::native::cpublas::brgemm != nullptr && !__builtin_cpu_is("intel") && __builtin_cpu_supports("avx512f");
  }();
  return does;
#else
  return false;
#endif
}

}  // namespace tiny
