// Memory of devices that share the host's. Freed blocks are kept, become one with free neighbours and are cut again: neither
// a training loop nor a loop of ever new sizes touches fresh pages for long.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <vector>

namespace tiny {

// Size classes of small blocks and of addresses: eight per power of two, so that what is freed serves others of about its
// size.
size_t size_class(size_t nbytes);

void* take_host_memory(size_t nbytes);
void give_host_memory(void* block, size_t nbytes);
void drop_host_memory();  // returns the pages of free blocks to the system

using c10::CachingAllocator::Stat;
struct HostMemoryStats {
  Stat mappings, reserved;            // mappings, and bytes of the blocks that were cut from them, in use or kept
  int64_t retries = 0, failures = 0;  // how often everything kept was returned first, and how often that was not enough
};
HostMemoryStats host_memory_stats();
void reset_host_memory_stats(void (Stat::*how)());
void limit_host_memory(size_t nbytes);  // of blocks

// A mapping, and the stretches of it that are in use or kept.
struct HostMapping {
  struct Stretch {
    const char* begin;
    size_t size;
    bool in_use;
  };
  const char* begin;
  size_t size;
  std::vector<Stretch> stretches;
};
std::vector<HostMapping> host_mappings();

// While one lives, what ATen allocates on the CPU in this thread comes from this memory.
class AtenTakesHostMemory {
 public:
  AtenTakesHostMemory();
  ~AtenTakesHostMemory();
  AtenTakesHostMemory(const AtenTakesHostMemory&) = delete;
  AtenTakesHostMemory& operator=(const AtenTakesHostMemory&) = delete;
};

}  // namespace tiny
