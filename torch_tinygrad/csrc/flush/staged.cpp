#include "flush/staged.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <limits>
#include <utility>

#include "operators/kernels_only.h"
#include "python/python.h"

namespace tiny {
namespace {

std::pair<std::string, size_t>& most_bytes() {
  static auto* most = new std::pair<std::string, size_t>("", std::numeric_limits<size_t>::max());
  return *most;
}

// Gives a storage a buffer of the same object with other memory of the CPU's, or none.
void set_owner(Storage& storage, c10::Storage owner) {
  _object* const object = std::exchange(storage.buffer->object, nullptr);
  storage.buffer.reset();
  storage.buffer = object_buffer(storage.device, storage.nbytes, object, std::move(owner));
}

}  // namespace

bool is_staged(c10::DeviceIndex device) { return !shares_host_memory() && !aten_device(device); }
c10::Device direct_device(c10::DeviceIndex device) { return aten_device(device).value_or(c10::Device(at::kCPU)); }

std::shared_ptr<Buffer> cpu_copy(c10::DeviceIndex device, const void* source, size_t nbytes) {
  check_buffer_bytes(nbytes);
  const KernelsOnly kernels_only;
  const at::Tensor bytes = at::empty({static_cast<int64_t>(nbytes)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), source, nbytes);
  return object_buffer(device, nbytes, nullptr, bytes.storage());
}

c10::Storage for_aten(Storage& storage) {
  const std::shared_ptr<Buffer>& buffer = storage.buffer;
  if (is_staged(storage.device) && (buffer == nullptr || !buffer->owner)) {
    const KernelsOnly kernels_only;
    const at::Tensor bytes = at::empty({static_cast<int64_t>(storage.nbytes)}, at::kByte);
    if (buffer == nullptr) {  // never written
      storage.buffer = object_buffer(storage.device, storage.nbytes, nullptr, bytes.storage());
    } else {
      download(*buffer, 0, bytes.mutable_data_ptr(), storage.nbytes);
      set_owner(storage, bytes.storage());
    }
  }
  if (buffer == nullptr) storage.buffer = new_buffer(storage.device, storage.nbytes);  // never written
  if (buffer->owner) return buffer->owner;
  auto* kept = new std::shared_ptr<Buffer>(buffer);
  c10::DataPtr data(buffer->host, kept, [](void* p) { delete static_cast<std::shared_ptr<Buffer>*>(p); }, at::kCPU);
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes, std::move(data),
                                                            /*allocator=*/nullptr, /*resizable=*/false));
}

void drop_device_copy(Storage& storage) {
  if (storage.buffer == nullptr || storage.buffer->object == nullptr || !is_staged(storage.device)) return;
  for_aten(storage);
  release_later(std::exchange(storage.buffer->object, nullptr));
}

void drop_cpu_copy(Storage& storage) {
  if (storage.buffer->owner && is_staged(storage.device)) set_owner(storage, {});
}

void set_most_bytes(std::string device, size_t nbytes) { most_bytes() = {std::move(device), nbytes}; }

void check_buffer_bytes(size_t nbytes) {
  const auto& [device, most] = most_bytes();
  TORCH_CHECK_WITH(OutOfMemoryError, nbytes <= most, "tiny: out of memory. Tried to allocate ", nbytes, " bytes on ", device,
                   ", whose buffers have at most ", most);
}

}  // namespace tiny
