// Which loops are best left whole, as they become one kernel.
#pragma once

#include "flush/periods.h"

namespace tiny {

// Whether trace/reroll.py makes one kernel of a loop: its steps compute element by element, pass nothing on but through
// storages that they all use, and write to another place each. `step` is the first node of one in the middle of it.
bool is_rerolled(const Trace& trace, const Uses& uses, const Loop& loop, size_t step);

}  // namespace tiny
