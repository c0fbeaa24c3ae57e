// Finds the steps that a trace repeats, and where to cut it so that a program of a few steps serves any number of them.
#pragma once

#include <vector>

#include "flush/pieces.h"

namespace tiny {

// Nodes begin .. end repeat those a period before, from begin + period on.
struct Loop {
  size_t begin, end, period;
};

struct Cuts {
  std::vector<size_t> ends;   // of the pieces, in nodes; none where the trace is best run as a whole
  bool ends_in_step = false;  // the last piece is the beginning of another step
};
// A trace that must be cut anyway (`at_bound`) may find steps when another one like it did not.
Cuts cuts_of(const Trace& trace, const Uses& uses, bool at_bound);

// False where the trace is short, or one like it was found to repeat nothing.
bool may_repeat(const Trace& trace, bool at_bound);

}  // namespace tiny
