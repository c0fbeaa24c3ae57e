// Small sizes have a part for themselves, are cut from ranges there and kept by size; ranges for large ones join their neighbours when they
// come back, so that any size can have them.
#include "device/addresses.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "device/host_memory.h"

namespace tiny {
namespace {

constexpr size_t kMostReserved = size_t{1} << 46, kLeastReserved = size_t{1} << 34;
constexpr size_t kPartForSmall = 16;  // of the whole, at the end of it: large ones do not have it
constexpr size_t kSmall = size_t{1} << 20;
constexpr size_t kCut = size_t{1} << 28, kMostCut = 4096;  // how long a range small ones are cut from, and into how many

void check_addresses(bool are_left, size_t nbytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, are_left, "tiny: out of memory. Tried to allocate ", nbytes,
                   " bytes, and no range of addresses is left");
}

}  // namespace

void* AddressSpace::take(size_t nbytes) {
  std::lock_guard<std::mutex> guard(mutex_);
  check_addresses(nbytes <= kMostReserved, nbytes);
  const size_t size = size_class(nbytes);
  if (begin_ == nullptr) reserve();
  if (size > kSmall) {
    char* found = take_range(size);
    check_addresses(found != nullptr, nbytes);
    return found;
  }
  auto& kept = small_[size];
  if (kept.empty()) {
    const size_t count = std::min(kMostCut, kCut / size);
    check_addresses(small_next_ + count * size <= end_, nbytes);
    char* const range = small_next_;
    small_next_ += count * size;
    for (size_t i = count; i-- > 0;) kept.push_back(range + i * size);
  }
  void* address = kept.back();
  kept.pop_back();
  return address;
}

// As much as the system lets a process have: it may bound the addresses, and checkers take most of them.
void AddressSpace::reserve() {
  for (size_t size = kMostReserved; size >= kLeastReserved; size /= 2) {
    void* reserved = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) continue;
    begin_ = next_ = static_cast<char*>(reserved);
    end_ = begin_ + size;
    end_of_large_ = small_next_ = end_ - size / kPartForSmall;
    return;
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, "tiny: could not reserve an address range of ", kLeastReserved, " bytes");
}

void AddressSpace::give(void* address, size_t nbytes) {
  std::lock_guard<std::mutex> guard(mutex_);
  const size_t size = size_class(nbytes);
  if (size > kSmall) {
    give_range(static_cast<char*>(address), size);
  } else {
    small_[size].push_back(static_cast<char*>(address));
  }
}

char* AddressSpace::take_range(size_t size) {
  if (const auto found = by_size_.lower_bound({size, nullptr}); found != by_size_.end()) {
    const auto [whole, begin] = *found;
    by_size_.erase(found);
    free_.erase(begin);
    if (whole > size) {
      free_.emplace(begin + size, whole - size);
      by_size_.emplace(whole - size, begin + size);
    }
    return begin;
  }
  if (static_cast<size_t>(end_of_large_ - next_) < size) return nullptr;
  char* begin = next_;
  next_ += size;
  return begin;
}

void AddressSpace::give_range(char* begin, size_t size) {
  auto after = free_.lower_bound(begin);
  if (after != free_.end() && begin + size == after->first) {
    size += after->second;
    by_size_.erase({after->second, after->first});
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      begin = before->first;
      size += before->second;
      by_size_.erase({before->second, before->first});
      free_.erase(before);
    }
  }
  if (begin + size == next_) {
    next_ = begin;
    return;
  }
  free_.emplace(begin, size);
  by_size_.emplace(size, begin);
}

}  // namespace tiny
