#include "device/host_views.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "flush/flush.h"
#include "python/python.h"
#include "record/copy.h"
#include "record/recorder.h"

namespace tiny {

namespace {

at::Tensor bytes_on_host(const at::Tensor& tensor, const char* reason) {
  if (!shares_host_memory() || tensor.numel() == 0) {
    DeviceLock lock;
    return on_host(tensor, reason);
  }
  DeviceLock lock;
  Storage* storage = storage_of(tensor.storage().data_ptr());
  // Who reads it later than this must not find what is written through the view.
  if (trace_of(storage->device).refers_to(storage)) flush(storage->device, reason);
  realize(tensor, reason);
  const std::shared_ptr<Buffer> buffer = storage->buffer;
  buffer->derived = nullptr;
  storage->contents = Contents::unknown();
  char* const begin = static_cast<char*>(buffer->host) + static_cast<size_t>(tensor.storage_offset()) * tensor.dtype().itemsize();
  return at::from_blob(begin, tensor.sizes(), tensor.strides(), [buffer](void*) {}, at::TensorOptions().dtype(tensor.scalar_type()));
}

}  // namespace

at::Tensor host_view(const at::Tensor& tensor, const char* reason) {
  at::Tensor view = bytes_on_host(tensor, reason);
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

}  // namespace tiny
