// The cache of programs.
#pragma once

#include <cstddef>

namespace tiny {

size_t& program_bound();  // programs kept at most; the least recently used goes first
void clear_programs();

// TORCH_TINY_DEBUG: 1 for a line a flush, 2 for a line a step as well.
int debug_level();

}  // namespace tiny
