// Finds the node to blame where a device without a direct way cannot compile or run a trace.
#pragma once

#include <string>

#include "trace.h"

namespace tiny {

// Runs the nodes in smaller and smaller parts until the one to blame stands alone. What only it would have written, and
// what depends on that, is lost; what it would have changed keeps its value.
void run_in_parts(Trace& trace, const std::string& message);

// Everything that the trace writes is lost, or would be old: a part of it has run already.
void lose_all(Trace& trace, const std::string& message);

}  // namespace tiny
