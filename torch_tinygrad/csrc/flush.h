// The cache of programs.
#pragma once

#include <cstddef>

namespace tiny {

size_t& program_bound();  // programs kept at most; the least recently used goes first
void clear_programs();

}  // namespace tiny
