#include "host_memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace tiny {

size_t size_class(size_t nbytes) {
  if (nbytes <= 512) return 512;
  size_t step = size_t{1} << (60 - __builtin_clzll(nbytes - 1));
  return (nbytes + step - 1) / step * step;
}

namespace {

constexpr size_t kHugePage = size_t{2} << 20, kMapping = size_t{32} << 20, kLargestShared = size_t{4} << 20;

// Addresses that begin on a huge page, or nullptr. Pages that nobody touches cost nothing.
char* map_pages(size_t size) {
  void* mapped = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(mapped);
  char* const aligned = begin + (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (aligned > begin) munmap(begin, aligned - begin);
  if (aligned < begin + kHugePage) munmap(aligned + size, begin + kHugePage - aligned);
#ifdef MADV_HUGEPAGE
  madvise(aligned, size, MADV_HUGEPAGE);
#endif
  return aligned;
}

// Blocks of a size class, cut from mappings: a large one has a mapping to itself, small ones share theirs.
class HostMemory {
 public:
  void* take(size_t nbytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    return take_locked(nbytes);
  }
  void* lend(size_t nbytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    void* block = take_locked(nbytes);
    lent_[block] = nbytes;
    return block;
  }
  void give(void* block, size_t nbytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    put_back(block, nbytes);
  }
  bool give_lent(void* block) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto it = lent_.find(block);
    if (it == lent_.end()) return false;
    put_back(block, it->second);
    lent_.erase(it);
    return true;
  }
  void drop_unused() {
    std::lock_guard<std::mutex> guard(mutex_);
    drop();
  }
  HostMemoryStats stats() {
    std::lock_guard<std::mutex> guard(mutex_);
    return stats_;
  }
  void reset_stats(void (Stat::*how)()) {
    std::lock_guard<std::mutex> guard(mutex_);
    (stats_.mappings.*how)();
    (stats_.reserved.*how)();
  }
  void limit(size_t nbytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    limit_ = nbytes;
  }
  std::vector<HostMapping> mappings() {
    std::lock_guard<std::mutex> guard(mutex_);
    std::map<char*, size_t> kept;
    for (const auto& [size, blocks] : free_)
      for (void* block : blocks) kept[static_cast<char*>(block)] = size;
    std::vector<HostMapping> all;
    for (const auto& [begin, mapping] : mappings_) {
      HostMapping described{begin, mapping.size, {}};
      char *at = begin, *const end = begin + mapping.used;
      for (auto it = kept.lower_bound(begin); at < end; ++it) {
        char* const next = it == kept.end() ? end : std::min(it->first, end);
        if (next > at) described.stretches.push_back({at, static_cast<size_t>(next - at), true});
        if (next == end) break;
        described.stretches.push_back({next, it->second, false});
        at = next + it->second;
      }
      all.push_back(std::move(described));
    }
    return all;
  }

 private:
  struct Mapping {
    size_t size, used = 0, free = 0;  // `free` is counted while dropping
  };
  using Mappings = std::map<char*, Mapping>;

  void* take_locked(size_t nbytes) {
    const size_t size = size_class(nbytes);
    auto& free = free_[size];
    if (free.empty()) {
      void* block = cut(size);
      if (block == nullptr) {
        stats_.retries++;
        drop();
        block = cut(size);
      }
      stats_.failures += block == nullptr;
      TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr, "tiny: out of memory: tried to allocate ", nbytes, " bytes", limit_text());
      return block;
    }
    void* block = free.back();
    free.pop_back();
    return block;
  }
  void put_back(void* block, size_t nbytes) {
    const size_t size = size_class(nbytes);
    free_[size].push_back(block);
  }
  std::string limit_text() const {
    if (limit_ == kNoLimit) return "";
    return c10::str(" beside ", stats_.reserved.current, ", and this process may have ", limit_, " (set_per_process_memory_fraction)");
  }
  void* cut(size_t size) {
    if (static_cast<size_t>(stats_.reserved.current) + size > limit_) return nullptr;
    const bool shares = size <= kLargestShared;
    auto it = shares ? mappings_.find(shared_) : mappings_.end();
    if (it == mappings_.end() || it->second.used + size > it->second.size) {
      const size_t mapped = shares ? kMapping : (size + 4095) / 4096 * 4096;
      char* begin = map_pages(mapped);
      if (begin == nullptr) return nullptr;
      it = mappings_.emplace(begin, Mapping{mapped}).first;
      if (shares) shared_ = begin;
      stats_.mappings.increase(1);
    }
    char* block = it->first + it->second.used;
    it->second.used += size;
    stats_.reserved.increase(size);
    return block;
  }
  Mapping& mapping_of(void* block) { return std::prev(mappings_.upper_bound(static_cast<char*>(block)))->second; }
  void drop() {
    for (auto& [begin, mapping] : mappings_) mapping.free = 0;
    for (auto& [size, blocks] : free_)
      for (void* block : blocks) mapping_of(block).free += size;
    for (auto& [size, blocks] : free_) {
      auto unused = [&](void* block) {
        const Mapping& mapping = mapping_of(block);
        return mapping.free == mapping.used;
      };
      blocks.erase(std::remove_if(blocks.begin(), blocks.end(), unused), blocks.end());
    }
    for (auto it = mappings_.begin(); it != mappings_.end();) {
      const auto& [begin, mapping] = *it;
      if (mapping.free < mapping.used) {
        ++it;
      } else {
        munmap(begin, mapping.size);
        stats_.mappings.decrease(1);
        stats_.reserved.decrease(mapping.used);
        it = mappings_.erase(it);
      }
    }
  }

  std::mutex mutex_;
  static constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();
  size_t limit_ = kNoLimit;
  HostMemoryStats stats_;
  std::unordered_map<size_t, std::vector<void*>> free_;
  std::unordered_map<void*, size_t> lent_;  // to ATen, which frees by address alone
  Mappings mappings_;
  char* shared_ = nullptr;  // the mapping that small blocks are cut from
};

// Never destroyed: tensors may outlive every static object.
HostMemory& memory() {
  static auto* the_memory = new HostMemory;
  return *the_memory;
}

thread_local int takers = 0;
c10::Allocator* usual = nullptr;  // the CPU's allocator that ours stands before

void give_back(void* block) {
  if (!memory().give_lent(block)) usual->raw_deallocate(block);
}

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (takers == 0 || nbytes == 0) return usual->allocate(nbytes);
    void* block = memory().lend(nbytes);
    return {block, block, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t count) const override { usual->copy_data(to, from, count); }
};

}  // namespace

void* take_host_memory(size_t nbytes) { return memory().take(nbytes); }
void give_host_memory(void* block, size_t nbytes) { memory().give(block, nbytes); }
void drop_host_memory() { memory().drop_unused(); }
HostMemoryStats host_memory_stats() { return memory().stats(); }
void reset_host_memory_stats(void (Stat::*how)()) { memory().reset_stats(how); }
void limit_host_memory(size_t nbytes) { memory().limit(nbytes); }
std::vector<HostMapping> host_mappings() { return memory().mappings(); }

AtenTakesHostMemory::AtenTakesHostMemory() {
  static CpuAllocator* const ours = [] {
    usual = c10::GetAllocator(c10::DeviceType::CPU);
    auto* allocator = new CpuAllocator;
    c10::SetAllocator(c10::DeviceType::CPU, allocator, UINT8_MAX);
    return allocator;
  }();
  (void)ours;
  takers++;
}
AtenTakesHostMemory::~AtenTakesHostMemory() { takers--; }

}  // namespace tiny
