// Traces of one structure in many sizes: those seen, the programs made for them, and what is let go.
#pragma once

#include "sizes/sizes.h"

namespace tiny {

// What is known of the traces of one structure.
struct SizeFamily {
  std::vector<Hash> seen_sizes;
  std::vector<std::vector<int64_t>> seen;               // a few, the newest last
  std::vector<std::shared_ptr<SizedProgram>> programs;  // the newest last
  std::optional<Hash> request;                          // what another process is compiling
  uint32_t asked = 0;                                   // how often a program was asked for
  bool looked_on_disk = false;
  uint64_t last_use = 0;
};
SizeFamily& size_family_of(const Hash& structure);
// Whether there are others among those seen before.
bool note_sizes(SizeFamily& family, Integers integers);
// Those that no program was made for are not asked for again: beside others they may be what stood against it.
void forget_sizes_without_program(SizeFamily& family);
void add_program_for(SizeFamily& family, std::shared_ptr<SizedProgram> program);
void clear_size_families();

}  // namespace tiny
