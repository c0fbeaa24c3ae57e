// What torch.tiny.explain asks the runtime for.
#include "flush/explain.h"

#include "flush/journal.h"

namespace py = pybind11;

namespace tiny {
namespace {

py::object* source = nullptr;  // gives the line of the user's code that is running

std::string source_now() {
  if (source == nullptr) return "";
  py::gil_scoped_acquire gil;
  return (*source)().cast<std::string>();
}

py::list notes() {
  py::list all;
  for (const FlushNote& note : take_notes(Watcher::Explain)) {
    py::list nodes, steps;
    for (const NodeNote& n : note.nodes) nodes.append(py::make_tuple(n.op, n.source, n.results, n.bytes, n.kept));
    for (const StepNote& s : note.steps) steps.append(py::make_tuple(s.text, s.start, s.end));
    py::dict flush;
    flush["device"] = static_cast<int>(note.device);
    flush["reason"] = note.reason;
    flush["way"] = note.way;
    flush["compile_ms"] = note.compiling;
    flush["start"] = note.start;
    flush["end"] = note.end;
    flush["kernels"] = note.kernels;
    flush["bytes_moved"] = note.bytes_moved;
    flush["nodes"] = nodes;
    flush["steps"] = steps;
    all.append(flush);
  }
  return all;
}

}  // namespace

void bind_explain(py::module_& m) {
  m.def("watched", &watched);
  m.def("explain", [](py::object function) {
    delete source;
    source = function.is_none() ? nullptr : new py::object(std::move(function));
    current_source = &source_now;
    watch(Watcher::Explain, source != nullptr);
  });
  m.def("explained", &notes);
}

}  // namespace tiny
