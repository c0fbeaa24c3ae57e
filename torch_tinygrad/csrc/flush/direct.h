// Runs a trace at once: node by node through ATen's kernels for the device behind, on the memory of its storages.
#pragma once

#include <exception>

#include "record/trace.h"

namespace tiny {

// Computes every value that somebody can still see. A node that ATen refuses costs what depends on it and nothing else:
// those storages are lost, with the reason, and the first refusal is given back.
std::exception_ptr run_directly(Trace& trace);

}  // namespace tiny
