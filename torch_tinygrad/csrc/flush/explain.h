#pragma once

#include <torch/csrc/utils/pybind.h>

namespace tiny {

// `explain(source)` begins to note flushes and lines of code, `explain(None)` ends it, `explained()` gives the notes.
void bind_explain(pybind11::module_& m);

}  // namespace tiny
