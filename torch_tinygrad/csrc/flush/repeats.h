// Traces that end in a loop of writes, known by its first two steps and by how many there are: loops that re-rolling makes
// one kernel of, whatever their length (trace/repeats.py). Loops whose steps need each other are cut in pieces: periods.h.
#pragma once

#include <optional>

#include "record/trace.h"

namespace tiny {

struct Repeats {
  uint32_t first = 0, period = 0, count = 0;  // nodes before the steps, nodes of a step, steps
  std::vector<bool> changing;                 // of a step's numbers: whether it is another one in some step
};

// Each step is as far from the one before as the second is from the first: in offsets, and in storages and numbers, of which
// each has as many of its own. Storages of a step's own are temporaries.
std::optional<Repeats> repeats_of(const Trace& trace);

}  // namespace tiny
