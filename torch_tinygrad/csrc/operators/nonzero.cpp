#include "operators/nonzero.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>

#include <algorithm>

#include "device/device.h"
#include "infer/ranges.h"
#include "operators/kernels_only.h"
#include "python/python.h"
#include "record/recorder.h"

namespace tiny {

std::optional<at::Tensor> nonzero_by_library(const at::Tensor& tensor) {
  const auto device = tensor.device().index();
  if (shares_host_memory() || !aten_device(device) || tensor.numel() == 0 || tensor.is_neg()) return std::nullopt;
  DeviceLock lock;
  const Buffer& buffer = realize(tensor, "nonzero");
  begin_direct(device);
  const KernelsOnly kernels_only;
  const at::Tensor memory = at::empty({0}, at::TensorOptions().device(buffer.owner.device()).dtype(tensor.scalar_type()))
                                .set_(buffer.owner, tensor.storage_offset(), tensor.sizes(), tensor.strides());
  // Index by index in memory, as on the CPU.
  const at::Tensor found = at::nonzero(memory).t().contiguous().t();
  at::Tensor result = make_tensor(found.sizes(), {1, found.size(0)}, found.scalar_type(), device);
  if (found.numel() == 0) return result;
  Storage& storage = *storage_of(result.storage().data_ptr());
  storage.buffer = adopted_buffer(device, storage.nbytes, found.storage());
  const int64_t most = *std::max_element(tensor.sizes().begin(), tensor.sizes().end());
  note_write(storage, /*is_whole=*/true, found.scalar_type(), Range::of(0, most - 1));
  return result;
}

}  // namespace tiny
