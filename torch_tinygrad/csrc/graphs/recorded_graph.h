// Graphs of torch.compile's: what a call of one records is kept, and appended to the trace as a whole by the next call.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace tiny {

void bind_recorded_graph(pybind11::module_& m);

}  // namespace tiny
