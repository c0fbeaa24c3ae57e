// Storages, their allocator, and the way from addresses to them.
#include "device/storage.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <unordered_map>
#include <vector>

#include "device/addresses.h"
#include "device/device.h"
#include "device/host_memory.h"
#include "device/memory_stats.h"
#include "python/python.h"
#include "python/python_side.h"

namespace tiny {
namespace {

AddressSpace& addresses() {
  static auto* space = new AddressSpace;
  return *space;
}

// Storages by address, for tensors that PyTorch makes over a storage's address alone (to serialize it, for one).
class ByAddress {
 public:
  void add(void* address, Storage* storage) {
    std::lock_guard<std::mutex> guard(mutex_);
    storages_[address] = storage;
  }
  void remove(void* address) {
    std::lock_guard<std::mutex> guard(mutex_);
    storages_.erase(address);
  }
  Storage* find(void* address) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto it = storages_.find(address);
    return it == storages_.end() ? nullptr : it->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, Storage*> storages_;
};
ByAddress& by_address() {
  static auto* all = new ByAddress;
  return *all;
}

struct StorageContext {
  StoragePtr storage;
  void* address;
};

void delete_context(void* opaque) {
  auto* context = static_cast<StorageContext*>(opaque);
  context->storage->live.store(false, std::memory_order_release);
  if (context->address != nullptr) {
    by_address().remove(context->address);
    addresses().give(context->address, context->storage->nbytes);
  }
  delete context;
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    check_fork();
    ensure_ready();
    const c10::DeviceIndex device = current_device();
    void* address = nbytes ? addresses().take(nbytes) : nullptr;
    auto* context = new StorageContext{c10::make_intrusive<Storage>(device, nbytes), address};
    if (address != nullptr) by_address().add(address, context->storage.get());
    return {address, context, &delete_context, c10::Device(c10::DeviceType::PrivateUse1, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "tiny: storages are copied by operators, not by address; use Tensor.copy_ or Tensor.clone");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    drop_host_memory();
    drop_device_memory();
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // work of all streams is in one order
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override { return device_stats(device); }
  void resetAccumulatedStats(c10::DeviceIndex device) override { reset_accumulated(device); }
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override { return memory_info(device); }
};
Allocator the_allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &the_allocator);

}  // namespace

c10::Allocator* allocator() { return &the_allocator; }

Storage* storage_of(const c10::DataPtr& data) {
  if (data.get_deleter() == &delete_context) return static_cast<StorageContext*>(data.get_context())->storage.get();
  Storage* storage = by_address().find(data.get());
  TORCH_CHECK(storage != nullptr,
              "tiny: this storage was not allocated by the device, as a part of one is not (storage[begin:end]): take a part of a tensor, "
              "torch.empty(0, dtype=torch.uint8, device='tiny').set_(storage)[begin:end]");
  return storage;
}

}  // namespace tiny
