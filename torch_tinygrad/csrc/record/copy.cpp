#include "record/copy.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

#include "device/device.h"
#include "device/sharing.h"
#include "flush/flush.h"
#include "infer/ranges.h"
#include "programs/workers.h"
#include "python/python.h"
#include "record/alone.h"
#include "record/looks.h"
#include "record/recorder.h"

namespace tiny {
namespace {

// Bytes that a thread has copied before another one is awake.
constexpr size_t kPiece = size_t{1} << 20;

// Whether copying the bytes copies the values.
bool lie_alike(const at::Tensor& to, const at::Tensor& from) {
  return to.device().is_cpu() && to.layout() == at::kStrided && to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() &&
         to.strides() == from.strides() && to.is_non_overlapping_and_dense() && !to.is_conj() && !to.is_neg() &&
         at::get_overlap_status(to, from) == at::MemOverlapStatus::No;
}

void copy_bytes(void* to, const void* from, size_t nbytes) {
  const auto pieces = static_cast<int64_t>((nbytes + kPiece - 1) / kPiece);
  share_out(pieces, at::get_num_threads(), [&](int64_t piece) {
    const size_t begin = static_cast<size_t>(piece) * kPiece;
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, std::min(kPiece, nbytes - begin));
  });
}

bool is_tiny(const at::Tensor& t) { return t.device().type() == c10::DeviceType::PrivateUse1; }

bool same_region(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().is_alias_of(b.storage()) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// Whether the tensor is all of its storage, in order of memory.
bool is_whole(const at::Tensor& t) {
  return t.is_non_overlapping_and_dense() && t.storage_offset() == 0 && t.nbytes() == t.storage().nbytes();
}

void record_copy(const at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  torch::jit::Stack stack;
  torch::jit::push(stack, self, src, non_blocking);
  record_op("aten::copy_", "", stack);
}

// Gives a storage the bytes of a dense CPU tensor, and notes the range of integers among them.
void put(Storage& storage, const at::Tensor& source) {
  looks++;
  const void* values = source.const_data_ptr();
  storage.buffer = upload(storage.device, values, source.nbytes());
  keep_in_place(storage);
  const auto dtype = source.scalar_type();
  const Range range = is_integral(dtype) ? range_at(values, source.numel(), dtype) : Range::all();
  note_write(storage, source.nbytes() >= storage.nbytes, dtype, range, true);
}

// A tensor of the device with these bytes, in the CPU tensor's own layout if that is dense.
at::Tensor uploaded(const at::Tensor& cpu, c10::DeviceIndex device) {
  const at::Tensor source = cpu.is_non_overlapping_and_dense() ? cpu : cpu.contiguous();
  at::Tensor result = make_tensor(source.sizes(), source.strides(), source.scalar_type(), device);
  if (source.nbytes() > 0) {
    DeviceLock lock;
    put(*storage_of(result.storage().data_ptr()), source);
  }
  return result;
}

void copy_up(const at::Tensor& self, const at::Tensor& given, bool non_blocking) {
  const auto device = self.device().index();
  {
    DeviceLock lock;
    if (trace_of(device).nodes.size() >= bounds().soft_nodes) flush(device, "an upload after much pending work");
  }
  const at::Tensor source = given.resolve_conj().resolve_neg();
  Storage* storage = storage_of(self.storage().data_ptr());
  if (self.sizes() == source.sizes() && self.scalar_type() == source.scalar_type() && is_whole(self) && source.nbytes() > 0) {
    const at::Tensor ordered =
        source.strides() == self.strides() ? source : at::empty_strided(self.sizes(), self.strides(), source.options()).copy_(source);
    DeviceLock lock;
    if (!trace_of(device).refers_to(storage)) {
      put(*storage, ordered);
      storage->lost.clear();
      return;
    }
  }
  record_copy(self, source.dim() == 0 ? source : uploaded(source, device), non_blocking);
}

void copy_down(const at::Tensor& self, const at::Tensor& given) {
  const at::Tensor src = given.resolve_conj().resolve_neg();
  DeviceLock lock;
  const at::Tensor values = on_host(src, "a copy to the CPU");
  if (lie_alike(self, values)) {
    copy_bytes(self.mutable_data_ptr(), values.const_data_ptr(), values.nbytes());
    return;
  }
  std::optional<Alone> alone;
  if (values.nbytes() <= kPiece) alone.emplace();
  self.copy_(values);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  check_fork();
  if (self.is_same(src)) return self;
  if (self.is_conj() || self.is_neg()) {
    // Written through its physical values.
    at::Tensor plain = self.is_conj() ? self.conj() : self;
    if (plain.is_neg()) plain = plain._neg_view();
    at::Tensor value = self.is_conj() ? src.conj() : src;
    if (self.is_neg()) value = value.neg();
    plain.copy_(value);
    return self;
  }
  if (src.sizes() != self.sizes()) {
    const auto shape = at::infer_size_dimvector(self.sizes(), src.sizes());
    TORCH_CHECK(self.sizes() == at::IntArrayRef(shape), "output with shape ", self.sizes(), " doesn't match the broadcast shape ",
                at::IntArrayRef(shape));
  }
  const at::Tensor source = src.sizes() == self.sizes() || src.dim() == 0 ? src : src.expand(self.sizes());
  if (!is_tiny(self)) {
    copy_down(self, source);
    return self;
  }
  at::assert_no_internal_overlap(self);
  if (self.numel() == 0) return self;
  if (!is_tiny(source)) {
    TORCH_CHECK(source.device().is_cpu(), "tiny: cannot copy from ", source.device(), "; copy to the CPU first");
    copy_up(self, source, non_blocking);
    return self;
  }
  if (source.device() != self.device()) {
    DeviceLock lock;
    copy_up(self, on_host(source.resolve_conj().resolve_neg(), "a copy to another device").clone(), non_blocking);
    return self;
  }
  at::assert_no_partial_overlap(self, source);
  if (!same_region(self, source)) record_copy(self, source.resolve_conj().resolve_neg(), non_blocking);
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  at::Tensor out = dst;
  copy_(out, self, non_blocking);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (self.sizes() != dst.sizes()) dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  TORCH_CHECK(self.numel() > 0, "_local_scalar_dense: Empty tensor not supported");
  DeviceLock lock;
  looks++;  // a value was read, known or not
  if (const std::optional<int64_t> known = known_value(self))
    return self.scalar_type() == at::kBool ? at::Scalar(*known != 0) : at::Scalar(*known);
  return on_host(self, "item").item();
}

}  // namespace

at::Tensor on_host(const at::Tensor& src, const char* reason) {
  const auto options = at::TensorOptions().dtype(src.scalar_type());
  if (src.numel() == 0) return at::empty(src.sizes(), options);
  Buffer& buffer = realize(src, reason);
  const size_t itemsize = src.dtype().itemsize();
  const size_t begin = static_cast<size_t>(src.storage_offset()) * itemsize;
  if (buffer.host != nullptr) return at::from_blob(static_cast<char*>(buffer.host) + begin, src.sizes(), src.strides(), options);
  int64_t span = 1;
  for (int64_t d = 0; d < src.dim(); d++) span += (src.size(d) - 1) * src.stride(d);
  at::Tensor bytes = at::empty({static_cast<int64_t>(span * itemsize)}, at::kByte);
  download(buffer, begin, bytes.mutable_data_ptr(), static_cast<size_t>(span) * itemsize);
  return at::from_blob(bytes.mutable_data_ptr(), src.sizes(), src.strides(), [bytes](void*) {}, options);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", copy_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
}

}  // namespace tiny
