#include "programs/compile.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "flush/staged.h"
#include "python/python.h"
#include "python/python_side.h"
#include "sizes/sizes.h"

namespace py = pybind11;

namespace tiny {
namespace {

py::object dtype_object(at::ScalarType dtype) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
}

// Builds the Python trace. Regions and numbers are made once and shared.
class TraceExport {
 public:
  TraceExport(const Trace& trace, const std::vector<uint32_t>& group) : trace_(trace) {
    for (uint32_t g : group) groups_ = std::max<size_t>(groups_, g);
    for (size_t r = 0; r < trace.regions.size(); r++) {
      const Region& region = trace.regions[r];
      py::tuple size(region.ndim), stride(region.ndim);
      for (uint32_t d = 0; d < region.ndim; d++) {
        size[d] = py::int_(trace.ints[region.shape + d]);
        stride[d] = py::int_(trace.ints[region.shape + region.ndim + d]);
      }
      const int64_t moves = group.empty() || group[r] == 0 ? -1 : static_cast<int64_t>(trace.numbers.size() + group[r] - 1);
      regions_.push_back(python_side().Region(region.storage, dtype_object(region.dtype), size, stride, region.offset, moves));
    }
  }

  py::object make() {
    py::list nodes, storages, numbers;
    for (const Node& node : trace_.nodes) {
      uint32_t at = node.args;
      py::list args, outs, writes;
      while (at < node.outs) args.append(argument(at));
      for (uint32_t r = node.outs; r < node.writes; r++) outs.append(reference(trace_.refs[r]));
      for (uint32_t r = node.writes; r < node.end; r++) writes.append(reference(trace_.refs[r]));
      nodes.append(py::make_tuple(node.op->name, args, outs, writes));
    }
    for (size_t s = 0; s < trace_.storages.size(); s++) {
      const Storage& storage = *trace_.storages[s];
      const bool any_size = trace_.is_piece && shares_host_memory() && storage.buffer != nullptr;
      storages.append(python_side().Storage(storage.nbytes, storage.buffer != nullptr, trace_.live[s], any_size));
    }
    for (const Number& number : trace_.numbers) numbers.append(number_value(number));
    for (size_t g = 0; g < groups_; g++) numbers.append(py::int_(0));
    return python_side().Trace(nodes, storages, numbers);
  }

 private:
  static py::object number_value(const Number& number) {
    if (number.is_float) return py::float_(number.f);
    return py::int_(number.i);
  }
  py::object reference(const ArgRef& ref) {
    switch (ref.kind) {
      case ArgRef::Kind::Region:
        return regions_[ref.index];
      case ArgRef::Kind::Number:
        return python_side().Number(number_value(trace_.numbers[ref.index]), ref.index);
      case ArgRef::Kind::Value:
        return torch::jit::toPyObject(trace_.values[ref.index]);
      default:
        return py::none();
    }
  }
  py::object argument(uint32_t& at) {
    const ArgRef& ref = trace_.refs[at++];
    if (ref.kind != ArgRef::Kind::List) return reference(ref);
    py::list list;
    for (uint32_t i = 0; i < ref.index; i++) list.append(argument(at));
    return list;
  }

  const Trace& trace_;
  size_t groups_ = 0;
  std::vector<py::object> regions_;
};

py::list positions_of(const std::vector<bool>& varying) {
  py::list positions;
  for (size_t i = 0; i < varying.size(); i++)
    if (varying[i]) positions.append(i);
  return positions;
}

// A program that the engine runs: for devices with memory of their own.
class ObjectProgram final : public Program {
 public:
  explicit ObjectProgram(py::object object) : object_(std::move(object)) {
    lifted = object_.attr("lifted").cast<std::vector<uint32_t>>();
    kernels = object_.attr("kernels").cast<int64_t>();
    bytes_moved = object_.attr("bytes_moved").cast<int64_t>();
    fallbacks = object_.attr("fallbacks").cast<std::map<std::string, int64_t>>();
    description = object_.attr("description").cast<std::vector<std::string>>();
    inputs_ = object_.attr("inputs").cast<std::vector<uint32_t>>();
    overwritten_ = object_.attr("overwritten").cast<std::vector<uint32_t>>();
  }
  ~ObjectProgram() override {
    py::gil_scoped_acquire gil;
    object_ = py::object();
  }
  void run(const Trace& trace, const std::vector<Number>& given) override {
    py::gil_scoped_acquire gil;
    release_objects();
    py::list inputs, numbers;
    for (const auto& item : object_.attr("lifted")) {
      const Number& number = given[item.cast<uint32_t>()];
      numbers.append(number.is_float ? py::object(py::float_(number.f)) : py::object(py::int_(number.i)));
    }
    py::list outputs;
    try {
      for (const uint32_t index : inputs_) {
        auto& storage = *trace.storages[index];
        if (storage.buffer == nullptr) storage.buffer = new_buffer(storage.device, storage.nbytes);
        const bool is_below = storage.buffer->object == nullptr;
        inputs.append(py::reinterpret_borrow<py::object>(engine_object(*storage.buffer)));
        if (is_below) drop_cpu_copy(storage);
      }
      outputs = object_.attr("run")(inputs, numbers);
    } catch (py::error_already_set& error) {
      started = object_.attr("started").cast<bool>();
      if (!error.matches(py::module_::import("torch").attr("OutOfMemoryError"))) throw;
      throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, py::str(error.value()).cast<std::string>());
    }
    for (const uint32_t i : overwritten_) drop_cpu_copy(*trace.storages[inputs_[i]]);
    times = object_.attr("times").cast<std::vector<double>>();
    size_t next = 0;
    for (const auto& item : object_.attr("outputs")) {
      auto& storage = *trace.storages[item.cast<uint32_t>()];
      storage.buffer = engine_buffer(storage.device, storage.nbytes, py::object(outputs[next++]).release().ptr());
    }
  }
  std::optional<std::string> to_bytes() const override {
    py::gil_scoped_acquire gil;
    const py::object bytes = object_.attr("to_bytes")();
    if (bytes.is_none()) return std::nullopt;
    return bytes.cast<std::string>();
  }

 private:
  py::object object_;
  std::vector<uint32_t> inputs_, overwritten_;  // storages; positions of those among them that steps write
};

PyObject *failed_type, *failed_value, *failed_traceback;

// What a compile gives; its failure, with the error kept for `PythonError`.
template <class F>
py::object compiled_by(const F& f) {
  try {
    return f();
  } catch (py::error_already_set& error) {
    CompileFailed failure;
    failure.message = py::str(error.value()).cast<std::string>();
    failure.interrupt = !PyErr_GivenExceptionMatches(error.type().ptr(), PyExc_Exception);
    failure.passing = failure.interrupt || error.matches(python_side().MAY_PASS);
    if (py::hasattr(error.value(), "tiny_node")) failure.node = error.value().attr("tiny_node").cast<int64_t>();
    error.restore();
    PyErr_Fetch(&failed_type, &failed_value, &failed_traceback);
    throw failure;
  }
}

}  // namespace

bool request(const std::string& name, const Trace& trace, const std::vector<bool>& varying, const std::vector<uint32_t>& group,
             const std::vector<std::vector<int64_t>>& seen) {
  py::gil_scoped_acquire gil;
  const py::object answer =
      python_side().request(py::bytes(name), TraceExport(trace, group).make(), positions_of(varying), static_cast<int>(trace.device), seen);
  return answer.cast<bool>();
}

std::shared_ptr<Program> compile(const Trace& trace, const std::vector<bool>& varying, const std::vector<uint32_t>& group) {
  py::gil_scoped_acquire gil;
  release_objects();
  const py::object result = compiled_by(
      [&] { return python_side().compile(TraceExport(trace, group).make(), positions_of(varying), static_cast<int>(trace.device)); });
  if (py::isinstance<HostProgram>(result)) return result.cast<std::shared_ptr<HostProgram>>();
  return std::make_shared<ObjectProgram>(result);
}

std::shared_ptr<SizedProgram> compile_sizes(const Trace& trace, const std::vector<bool>& varying,
                                            const std::vector<std::vector<int64_t>>& seen) {
  py::gil_scoped_acquire gil;
  auto program =
      compiled_by([&] {
        return python_side().compile_sizes(TraceExport(trace, {}).make(), seen, positions_of(varying), static_cast<int>(trace.device));
      }).cast<std::shared_ptr<SizedProgram>>();
  program->program->load_images();
  return program;
}

std::shared_ptr<Program> program_from_bytes(std::string_view bytes, c10::DeviceIndex device) {
  if (shares_host_memory()) return HostProgram::read_from(bytes);
  py::gil_scoped_acquire gil;
  try {
    return std::make_shared<ObjectProgram>(python_side().load(py::bytes(bytes.data(), bytes.size()), static_cast<int>(device)));
  } catch (py::error_already_set& error) {
    if (!PyErr_GivenExceptionMatches(error.type().ptr(), PyExc_Exception)) throw;
    return nullptr;  // another driver may refuse the machine code: it is compiled again
  }
}

PythonError::PythonError() : type_(failed_type), value_(failed_value), traceback_(failed_traceback) {
  failed_type = failed_value = failed_traceback = nullptr;
}

void PythonError::rethrow() const {
  failed_type = type_, failed_value = value_, failed_traceback = traceback_;
  throw_python_error();
}

void forget_python_error() {
  py::gil_scoped_acquire gil;
  for (PyObject** object : {&failed_type, &failed_value, &failed_traceback}) Py_CLEAR(*object);
}

void throw_python_error() {
  py::gil_scoped_acquire gil;
  PyErr_Restore(failed_type, failed_value, failed_traceback);
  failed_type = failed_value = failed_traceback = nullptr;
  python_error error;
  error.persist();
  throw std::move(error);
}

}  // namespace tiny
