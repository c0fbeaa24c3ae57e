#include "python/python_side.h"

#include <c10/util/Exception.h>

#include <atomic>

#include "record/recorder.h"

namespace py = pybind11;

namespace tiny {
namespace {

// Never destroyed: the interpreter may be gone by then.
PythonSide* side = nullptr;
py::object* prepare = nullptr;
std::atomic<bool> ready{false};

}  // namespace

const PythonSide& python_side() {
  ensure_ready();
  return *side;
}

bool is_python_side_set() { return ready; }

void set_prepare(py::object function) { prepare = new py::object(std::move(function)); }

// Of threads that come at the same time one sets the device up: Python's lock changes hands while it does.
void ensure_ready() {
  if (ready) return;
  const DeviceLock lock;
  const py::gil_scoped_acquire gil;
  if (ready) return;
  TORCH_CHECK(prepare != nullptr, "tiny: the device is not set up; import torch_tinygrad");
  (*prepare)();
  ready = side != nullptr;
}

void set_up(const py::dict& hooks, bool host, const std::string& library) {
  std::optional<c10::DeviceType> type;
  if (!library.empty()) type = c10::Device(library).type();
  side = new PythonSide{hooks["op_traits"],
                        hooks["warn_fallback"],
                        hooks["compile"],
                        hooks["compile_sizes"],
                        hooks["request"],
                        hooks["load"],
                        hooks["new_buffer"],
                        hooks["wrap"],
                        hooks["begin_direct"],
                        hooks["upload"],
                        hooks["download"],
                        hooks["synchronize"],
                        hooks["empty_cache"],
                        hooks["memory_info"],
                        hooks["Region"],
                        hooks["Number"],
                        hooks["Storage"],
                        hooks["Trace"],
                        hooks["MAY_PASS"],
                        host,
                        type};
}

}  // namespace tiny
