#include "device/host_memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tiny {

size_t size_class(size_t nbytes) {
  if (nbytes <= 512) return 512;
  size_t step = size_t{1} << (60 - __builtin_clzll(nbytes - 1));
  return (nbytes + step - 1) / step * step;
}

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSegment = size_t{1} << 30;  // addresses, of which pages that nobody touches cost nothing
constexpr size_t kSlab = size_t{1} << 20, kLargestInSlab = size_t{32} << 10;

size_t rounded_up(size_t size, size_t to) { return (size + to - 1) / to * to; }

// Free stretches of addresses: by address, so that neighbours become one, and by size, so that the smallest that fits is
// found.
class Stretches {
 public:
  void add(char* begin, size_t size) {
    auto after = by_address_.lower_bound(begin);
    if (after != by_address_.end() && after->first == begin + size) {
      size += after->second;
      after = erase(after);
    }
    if (after != by_address_.begin()) {
      auto before = std::prev(after);
      if (before->first + before->second == begin) {
        begin = before->first;
        size += before->second;
        erase(before);
      }
    }
    by_address_.emplace(begin, size);
    by_size_.emplace(size, begin);
  }
  // The beginning of the smallest stretch that has room, or nullptr.
  char* take(size_t size) {
    const auto found = by_size_.lower_bound({size, nullptr});
    if (found == by_size_.end()) return nullptr;
    const auto [room, begin] = *found;
    erase(by_address_.find(begin));
    if (room > size) {
      by_address_.emplace(begin + size, room - size);
      by_size_.emplace(room - size, begin + size);
    }
    return begin;
  }
  // Whether this very stretch was there.
  bool remove(char* begin, size_t size) {
    const auto found = by_address_.find(begin);
    if (found == by_address_.end() || found->second != size) return false;
    erase(found);
    return true;
  }
  void clear() {
    by_address_.clear();
    by_size_.clear();
  }
  const std::map<char*, size_t>& all() const { return by_address_; }

 private:
  std::map<char*, size_t>::iterator erase(std::map<char*, size_t>::iterator it) {
    by_size_.erase({it->second, it->first});
    return by_address_.erase(it);
  }
  std::map<char*, size_t> by_address_;
  std::set<std::pair<size_t, char*>> by_size_;
};

// Blocks cut from segments of addresses. What is freed is kept, merged with its neighbours, and cut again before pages
// that nobody touched; small blocks are cut from slabs, by size class.
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
    std::map<char*, std::pair<size_t, bool>> unused;  // and whether its pages are kept
    for (const auto& [begin, size] : fresh_.all()) unused[begin] = {size, false};
    for (const auto& [begin, size] : kept_.all()) unused[begin] = {size, true};
    for (const auto& [size, blocks] : small_)
      for (char* block : blocks) unused[block] = {size, true};
    for (const auto& [slab, used] : slabs_)
      if (used < kSlab) unused[slab + used] = {kSlab - used, true};
    std::vector<HostMapping> all;
    for (const auto& [begin, size] : segments_) {
      HostMapping described{begin, size, {}};
      char *at = begin, *const end = begin + size - kPage;
      for (auto it = unused.lower_bound(begin); at < end; ++it) {
        char* const next = it == unused.end() ? end : std::min(it->first, end);
        if (next > at) described.stretches.push_back({at, static_cast<size_t>(next - at), true});
        if (next == end) break;
        const auto [room, is_kept] = it->second;
        if (is_kept) described.stretches.push_back({next, room, false});
        at = next + room;
      }
      all.push_back(std::move(described));
    }
    return all;
  }

 private:
  void* take_locked(size_t nbytes) {
    void* block = find(nbytes);
    if (block == nullptr) {
      stats_.retries++;
      drop();
      block = find(nbytes);
    }
    stats_.failures += block == nullptr;
    TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr, "tiny: out of memory. Tried to allocate ", nbytes, " bytes", limit_text());
    return block;
  }
  void put_back(void* block, size_t nbytes) {
    char* const begin = static_cast<char*>(block);
    if (nbytes <= kLargestInSlab)
      small_[size_class(nbytes)].push_back(begin);
    else
      kept_.add(begin, rounded_up(nbytes, kPage));
  }
  std::string limit_text() const {
    if (limit_ == kNoLimit) return "";
    return c10::str(" beside ", stats_.reserved.current, ", and this process may have ", limit_, " (set_per_process_memory_fraction)");
  }
  char* find(size_t nbytes) { return nbytes <= kLargestInSlab ? find_small(size_class(nbytes)) : find_large(rounded_up(nbytes, kPage)); }
  char* find_small(size_t size) {
    auto& free = small_[size];
    if (!free.empty()) {
      char* const block = free.back();
      free.pop_back();
      return block;
    }
    auto slab = slabs_.find(cut_from_);
    if (slab == slabs_.end() || slab->second + size > kSlab) {
      char* const begin = find_large(kSlab);
      if (begin == nullptr) return nullptr;
      slab = slabs_.emplace(begin, 0).first;
      cut_from_ = begin;
    }
    char* const block = slab->first + slab->second;
    slab->second += size;
    return block;
  }
  char* find_large(size_t size) {
    if (char* const begin = kept_.take(size)) return begin;
    if (size > limit_ || static_cast<size_t>(stats_.reserved.current) > limit_ - size) return nullptr;
    char* begin = fresh_.take(size);
    if (begin == nullptr && (map_segment(std::max(size + kPage, kSegment)) || map_segment(size + kPage))) begin = fresh_.take(size);
    if (begin != nullptr) stats_.reserved.increase(size);
    return begin;
  }
  // The last page is nobody's: stretches of two segments are never neighbours.
  bool map_segment(size_t size) {
    void* const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return false;
    char* const begin = static_cast<char*>(mapped);
    segments_[begin] = size;
    fresh_.add(begin, size - kPage);
    stats_.mappings.increase(1);
    return true;
  }
  void drop() {
    drop_slabs();
    for (const auto& [begin, size] : kept_.all()) {
      madvise(begin, size, MADV_DONTNEED);
      fresh_.add(begin, size);
      stats_.reserved.decrease(size);
    }
    kept_.clear();
    for (auto it = segments_.begin(); it != segments_.end();) {
      const auto [begin, size] = *it;
      if (!fresh_.remove(begin, size - kPage)) {
        ++it;
      } else {
        munmap(begin, size);
        stats_.mappings.decrease(1);
        it = segments_.erase(it);
      }
    }
  }
  // Slabs that no block in use lies in are kept as large blocks are.
  void drop_slabs() {
    std::unordered_map<char*, size_t> unused;
    auto slab_of = [&](char* block) { return std::prev(slabs_.upper_bound(block)); };
    for (const auto& [size, blocks] : small_)
      for (char* block : blocks) unused[slab_of(block)->first] += size;
    auto goes = [&](char* block) {
      const auto slab = slab_of(block);
      return unused[slab->first] == slab->second;
    };
    for (auto& [size, blocks] : small_) blocks.erase(std::remove_if(blocks.begin(), blocks.end(), goes), blocks.end());
    for (const auto& [slab, size] : unused) {
      const auto it = slabs_.find(slab);
      if (size < it->second) continue;
      kept_.add(slab, kSlab);
      slabs_.erase(it);
    }
  }

  std::mutex mutex_;
  static constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();
  size_t limit_ = kNoLimit;
  HostMemoryStats stats_;
  std::map<char*, size_t> segments_;
  Stretches kept_, fresh_;         // free, with pages that were touched, and without
  std::map<char*, size_t> slabs_;  // and how much of each was cut
  char* cut_from_ = nullptr;       // the slab that small blocks are cut from
  std::unordered_map<size_t, std::vector<char*>> small_;
  std::unordered_map<void*, size_t> lent_;  // to ATen, which frees by address alone
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
