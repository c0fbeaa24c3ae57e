#include "device/pinned_memory.h"

#include <ATen/core/CachingHostAllocator.h>

#include <atomic>
#include <iterator>
#include <map>
#include <mutex>

namespace tiny {
namespace {

class PinnedMemory final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    auto* block = new Block{c10::GetAllocator(c10::DeviceType::CPU)->allocate(nbytes)};
    char* const begin = static_cast<char*>(block->memory.get());
    std::lock_guard<std::mutex> guard(mutex_);
    if (begin != nullptr) ends_[begin] = begin + nbytes, count_++;
    return {begin, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
  bool record_event(void* address, void*, c10::Stream) override { return holds(address); }  // work of all streams is in one order
  void empty_cache() override {}                                                            // nothing is kept
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
  bool holds(const void* address) {
    if (count_ == 0) return false;
    std::lock_guard<std::mutex> guard(mutex_);
    auto it = ends_.upper_bound(static_cast<const char*>(address));
    return it != ends_.begin() && address < std::prev(it)->second;
  }

 private:
  struct Block {
    c10::DataPtr memory;
  };
  static void release(void* opaque);

  std::mutex mutex_;
  std::atomic<size_t> count_{0};
  std::map<const char*, const char*> ends_;
};

// Never destroyed: tensors may outlive every static object.
PinnedMemory& memory() {
  static auto* the_memory = new PinnedMemory;
  return *the_memory;
}

void PinnedMemory::release(void* opaque) {
  auto* block = static_cast<Block*>(opaque);
  {
    std::lock_guard<std::mutex> guard(memory().mutex_);
    memory().count_ -= memory().ends_.erase(static_cast<char*>(block->memory.get()));
  }
  delete block;
}

}  // namespace

const at::HostAllocatorRegistry<c10::DeviceType::PrivateUse1> registered(&memory());

c10::Allocator* pinned_allocator() { return &memory(); }
bool is_pinned(const void* address) { return memory().holds(address); }

}  // namespace tiny
