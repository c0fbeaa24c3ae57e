#include "device/sharing.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "device/device.h"
#include "device/host_views.h"
#include "flush/flush.h"
#include "python/python.h"
#include "record/recorder.h"

namespace tiny {
namespace {

std::atomic<bool> any_shared{false};

void check_host(c10::DeviceIndex device) {
  TORCH_CHECK_NOT_IMPLEMENTED(shares_host_memory(),
                              "tiny: this device has memory of its own, which others cannot see; copy to the CPU first");
}

void share(Storage& storage) {
  storage.shared = storage.buffer;
  storage.shared->seen_outside = true;
  storage.buffer->derived = nullptr;
  storage.contents = Contents::unknown();
  any_shared = true;
}

// Storages over CPU memory by its address, as long as they live. No two overlap: pending work would not know of it.
class FromHost {
 public:
  // The storage that has all these bytes; none where nobody has any of them.
  c10::Storage find(const char* begin, size_t nbytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    const char* const end = begin + nbytes;
    for (auto it = known_.lower_bound(end); it != known_.begin();) {
      --it;
      c10::Storage storage(it->second.lock());
      if (!storage) {
        it = known_.erase(it);
        continue;
      }
      const char* const known_end = it->first + storage.nbytes();
      if (known_end <= begin) break;
      TORCH_CHECK(it->first <= begin && end <= known_end,
                  "tiny: a part of this memory is on the device already; take all of it first, then the part");
      return storage;
    }
    return {};
  }
  void add(const char* begin, const c10::Storage& storage) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (known_.size() >= 2 * most_living_ + 64) {
      for (auto it = known_.begin(); it != known_.end();) it = it->second.expired() ? known_.erase(it) : std::next(it);
      most_living_ = known_.size();
    }
    known_.insert_or_assign(begin, c10::weak_intrusive_ptr<c10::StorageImpl>(storage.getWeakStorageImpl()));
  }

 private:
  std::mutex mutex_;
  size_t most_living_ = 0;
  std::map<const char*, c10::weak_intrusive_ptr<c10::StorageImpl>> known_;
};
FromHost& from_host_memory() {
  static auto* all = new FromHost;
  return *all;
}

const char* address_of(const c10::Storage& cpu) { return static_cast<const char*>(cpu.data()); }

// A storage of the device that has these bytes, and how many of it come before them.
std::pair<c10::Storage, size_t> storage_over(const c10::Storage& cpu, c10::DeviceIndex device) {
  if (c10::Storage known = from_host_memory().find(address_of(cpu), cpu.nbytes())) {
    TORCH_CHECK(known.device().index() == device, "tiny: this memory is on ", known.device(), " already");
    DeviceLock lock;
    return {known, address_of(cpu) - static_cast<const char*>(storage_of(known.data_ptr())->shared->host)};
  }
  c10::DeviceGuard guard(c10::Device(c10::DeviceType::PrivateUse1, device));
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), cpu.nbytes(),
                                                             allocator()->allocate(cpu.nbytes()), allocator(), /*resizable=*/true));
  DeviceLock lock;
  Storage& ours = *storage_of(storage.data_ptr());
  ours.buffer = adopted_buffer(device, cpu.nbytes(), cpu);
  share(ours);
  from_host_memory().add(address_of(cpu), storage);
  return {storage, 0};
}

}  // namespace

at::Tensor shared_view(const at::Tensor& tensor) {
  check_host(tensor.device().index());
  if (tensor.storage().nbytes() == 0) return host_view(tensor, "memory seen by others");
  DeviceLock lock;
  realize(tensor, "memory seen by others");
  Storage& storage = *storage_of(tensor.storage().data_ptr());
  if (storage.shared == nullptr) share(storage);
  return host_view(tensor, "memory seen by others");
}

at::Tensor from_host(const at::Tensor& cpu, c10::DeviceIndex device) {
  check_host(device);
  TORCH_CHECK(cpu.device().is_cpu() && cpu.layout() == at::kStrided, "tiny: expected a dense tensor on the CPU, got one on ", cpu.device());
  TORCH_CHECK(!cpu.is_conj() && !cpu.is_neg(), "tiny: expected a tensor without the conjugate or negative bit");
  if (cpu.storage().nbytes() == 0) return make_tensor(cpu.sizes(), cpu.strides(), cpu.scalar_type(), device);
  auto [storage, before] = storage_over(cpu.storage(), device);
  TORCH_CHECK(before % cpu.itemsize() == 0, "tiny: this memory is on the device already, where it does not begin at an element");
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                               c10::scalarTypeToTypeMeta(cpu.scalar_type()));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(),
                                                      cpu.storage_offset() + static_cast<int64_t>(before / cpu.itemsize()));
  return tensor;
}

void move_to(const at::Tensor& tensor, const c10::Storage& memory) {
  check_host(tensor.device().index());
  DeviceLock lock;
  const Buffer& from = realize(tensor, "memory seen by other processes");
  Storage& storage = *storage_of(tensor.storage().data_ptr());
  TORCH_CHECK(storage.shared == nullptr, "tiny: this tensor's memory is seen by another library, and cannot move; clone it first");
  TORCH_CHECK(memory.nbytes() >= from.nbytes, "tiny: ", from.nbytes, " bytes do not fit into ", memory.nbytes());
  auto to = adopted_buffer(from.device, from.nbytes, memory);
  std::memcpy(to->host, from.host, from.nbytes);
  storage.buffer = std::move(to);
  share(storage);
  from_host_memory().add(address_of(memory), tensor.storage());
}

at::Tensor owner_view(const at::Tensor& tensor) {
  DeviceLock lock;
  const Storage& storage = *storage_of(tensor.storage().data_ptr());
  if (storage.shared == nullptr || !storage.shared->owner) return {};
  flush(storage.device, "memory seen by other processes");
  at::Tensor view = at::empty({0}, at::TensorOptions().dtype(tensor.scalar_type()));
  return view.set_(storage.shared->owner, tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

void keep_in_place(Storage& storage) {
  if (storage.shared == nullptr || storage.buffer == nullptr || storage.buffer == storage.shared) return;
  std::memcpy(storage.shared->host, storage.buffer->host, storage.nbytes);
  storage.buffer = storage.shared;
}

void keep_in_place(const Trace& trace) {
  if (!any_shared) return;
  for (const auto& storage : trace.storages) keep_in_place(*storage);
}

}  // namespace tiny
