// Addresses for storages, at which nothing is mapped: unique among living storages, reused after them.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

namespace tiny {

class AddressSpace {
 public:
  // Raises where no range is left that is long enough, or none could be reserved; another call may be luckier.
  void* take(size_t nbytes);
  void give(void* address, size_t nbytes);

 private:
  void reserve();
  char* take_range(size_t size);
  void give_range(char* begin, size_t size);

  std::mutex mutex_;
  char *begin_ = nullptr, *end_of_large_ = nullptr, *end_ = nullptr;  // what is reserved
  char *next_ = nullptr, *small_next_ = nullptr;                      // where the parts begin that were never used
  std::map<char*, size_t> free_;                                      // ranges that nobody has, none beside another
  std::set<std::pair<size_t, char*>> by_size_;                        // the same
  std::unordered_map<size_t, std::vector<char*>> small_;              // by size: cut from ranges, and kept
};

}  // namespace tiny
