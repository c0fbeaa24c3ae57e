// Memory of devices that share the host's, on huge pages where the system lends them. Freed blocks are kept for the next
// of their size, so that a training loop touches no fresh pages after its first steps.
#pragma once

#include <cstddef>

namespace tiny {

// Size classes: eight per power of two, so that a freed block serves others of about its size.
size_t size_class(size_t nbytes);

void* take_host_memory(size_t nbytes);
void give_host_memory(void* block, size_t nbytes);
void drop_host_memory();  // returns to the system what no block in use shares a mapping with
size_t cached_host_memory();

// While one lives, what ATen allocates on the CPU in this thread comes from this memory.
class AtenTakesHostMemory {
 public:
  AtenTakesHostMemory();
  ~AtenTakesHostMemory();
  AtenTakesHostMemory(const AtenTakesHostMemory&) = delete;
  AtenTakesHostMemory& operator=(const AtenTakesHostMemory&) = delete;
};

}  // namespace tiny
