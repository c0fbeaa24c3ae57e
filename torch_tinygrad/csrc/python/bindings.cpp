// What Python sees of the runtime.
#include <ATen/native/CPUFallback.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <set>

#include "device/device.h"
#include "device/host_memory.h"
#include "device/host_views.h"
#include "device/memory_stats.h"
#include "device/sharing.h"
#include "device/storage.h"
#include "device/types.h"
#include "flush/explain.h"
#include "flush/flush.h"
#include "flush/policy.h"
#include "flush/random_stream.h"
#include "flush/staged.h"
#include "graphs/recorded_graph.h"
#include "graphs/recording.h"
#include "infer/ranges.h"
#include "operators/nonzero.h"
#include "programs/disk.h"
#include "programs/products.h"
#include "programs/program.h"
#include "programs/programs.h"
#include "programs/service.h"
#include "programs/small_products.h"
#include "python/python.h"
#include "python/python_side.h"
#include "record/assertions.h"
#include "record/recorder.h"
#include "sizes/size_marks.h"
#include "sizes/sizes.h"

namespace py = pybind11;

namespace tiny {
namespace {

// As the first call of a process, before those below are registered.
void record_the_first(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ensure_ready();
  record(op, stack);
}

// Registers the recorder for operators that a composite kernel would otherwise intercept.
// Once: setting the device up may have been interrupted before.
void register_recorder(const std::vector<std::string>& names) {
  static const auto* library = [&] {
    auto* made = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    for (const auto& name : names) made->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&record>());
    return made;
  }();
  static_cast<void>(library);
}

// Autograd's threads may still hold Python objects of the last backward pass, and would abort the process if they gave
// them up after the interpreter is gone. They work in order: once a pass that holds none is through, those are forgotten.
void wait_for_autograd() {
  py::gil_scoped_release no_gil;
  at::AutoGradMode enabled(true);
  for (c10::DeviceIndex i = 0; i < device_count(); i++) {
    const at::Tensor leaf = make_tensor({1}, {1}, at::kFloat, i).set_requires_grad(true);
    torch::autograd::backward({leaf.view({1})}, {leaf.detach()});
  }
}

// Flushes the devices that an optimizer has parameters on.
void flush_step(const py::object& groups) {
  std::set<c10::DeviceIndex> devices;
  for (const py::handle group : groups)
    for (const py::handle p : group["params"]) {
      if (!THPVariable_Check(p.ptr())) continue;
      const at::Tensor& parameter = THPVariable_Unpack(p.ptr());
      if (parameter.is_privateuseone()) devices.insert(parameter.device().index());
    }
  py::gil_scoped_release no_gil;
  for (c10::DeviceIndex device : devices) flush(device, "an optimizer step");
}

void assert_within_of_python(const at::Tensor& tensor, double least, double most, const std::string& message) {
  static auto& messages = *new std::set<std::string>;  // they are raised later, if ever
  const char* kept = messages.insert(message).first->c_str();
  py::gil_scoped_release no_gil;
  assert_within(tensor, least, most, kept);
}

py::dict stats_dict() {
  DeviceLock lock;
  const Stats& s = stats();
  py::dict d;
  d["nodes"] = s.nodes;
  d["flushes"] = s.flushes;
  d["compiles"] = s.compiles;
  d["replays"] = s.replays;
  d["graphs"] = graphs_appended();
  d["loads"] = s.loads;
  d["direct"] = s.direct;
  d["compiling"] = requests_pending();
  d["not_compiled"] = s.not_compiled;
  d["not_variable"] = s.not_variable;
  d["kernels"] = s.kernels;
  d["bytes_moved"] = s.bytes_moved;
  d["fallbacks"] = s.fallbacks;
  return d;
}

// Of the sixteen bytes of a trace's key.
Hash hash_from(std::string_view bytes) {
  Hash hash;
  TORCH_CHECK(bytes.size() == 16, "tiny: a key of ", bytes.size(), " bytes");
  std::memcpy(&hash.a, bytes.data(), 8);
  std::memcpy(&hash.b, bytes.data() + 8, 8);
  return hash;
}

Slot slot_from(const py::handle& item) {
  const auto t = item.cast<std::tuple<int, uint32_t, int64_t>>();
  return {static_cast<Slot::Kind>(std::get<0>(t)), std::get<1>(t), std::get<2>(t)};
}

SlotTensor slot_tensor_from(const py::handle& item) {
  if (item.is_none()) return {{}, at::ScalarType::Undefined, {}, {}};
  const auto t = item.cast<py::tuple>();
  return {slot_from(t[0]), reinterpret_cast<THPDtype*>(t[1].ptr())->scalar_type, t[2].cast<std::vector<int64_t>>(),
          t[3].cast<std::vector<int64_t>>()};
}

std::vector<Slot> slots_from(const py::list& items) {
  std::vector<Slot> slots;
  for (const auto& item : items) slots.push_back(slot_from(item));
  return slots;
}

void add_aten(HostProgram& program, const std::string& name, const std::string& overload, const py::list& arguments,
              const py::list& tensors, const py::list& results, bool packs) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  std::vector<c10::IValue> values;
  for (size_t i = 0; i < arguments.size(); i++) {
    const py::object item = arguments[i];
    // Tensors arrive as placeholders (an empty CPU tensor), filled in at each run.
    values.push_back(torch::jit::toIValue(item, op.schema().arguments()[i].type()));
  }
  std::vector<std::pair<std::vector<int>, SlotTensor>> inputs;
  for (const auto& item : tensors) {
    const auto pair = item.cast<py::tuple>();
    inputs.emplace_back(pair[0].cast<std::vector<int>>(), slot_tensor_from(pair[1]));
  }
  std::vector<SlotTensor> outs;
  for (const auto& item : results) outs.push_back(slot_tensor_from(item));
  program.add_aten(name, overload, std::move(values), std::move(inputs), std::move(outs), packs);
}

std::vector<int64_t> integers_of(HostProgram& program) {
  std::vector<int64_t> values;
  program.each_integer([&](int64_t& value) { values.push_back(value); });
  return values;
}

// Where in the list of a program's integers its table of sizes begins.
int64_t first_size_of(HostProgram& program) {
  int64_t count = 0, found = 0;
  program.each_integer([&](int64_t& value) {
    if (&value == program.sizes.data()) found = count;
    count++;
  });
  return found;
}

// The program without what follows from sizes.
py::object skeleton_of(const HostProgram& program) {
  HostProgram bare = program;
  bare.storage_sizes.clear();
  bare.each_integer([](int64_t& value) { value = 0; });
  bare.arena = bare.bytes_moved = 0;
  const auto bytes = bare.to_bytes();
  return bytes ? py::object(py::bytes(*bytes)) : py::none();
}

using PlainPolynomial = std::pair<std::vector<std::pair<int64_t, std::array<uint8_t, 4>>>, int64_t>;
using PlainRuns = std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>>;
using PlainForms = std::vector<std::pair<uint32_t, PlainPolynomial>>;

Polynomial polynomial_from(const PlainPolynomial& plain) {
  Polynomial p;
  for (const auto& [factor, powers] : plain.first) p.terms.push_back({factor, powers});
  p.divisor = plain.second;
  return p;
}

std::shared_ptr<SizedProgram> sized_program(
    std::shared_ptr<HostProgram> program, std::vector<int64_t> constants, std::vector<uint32_t> free,
    const std::vector<std::tuple<int32_t, int32_t, int32_t, int64_t, int64_t, int64_t, int64_t>>& variables, const PlainForms& used,
    const PlainForms& integers, const PlainForms& filled,
    const std::vector<std::tuple<uint32_t, double, std::vector<std::pair<PlainPolynomial, double>>>>& fractions,
    const std::optional<std::pair<PlainRuns, PlainRuns>>& repeats) {
  auto sized = std::make_shared<SizedProgram>();
  sized->program = std::move(program), sized->constants = std::move(constants), sized->free = std::move(free);
  for (const auto& [position, stride, less, rest, unit, low, high] : variables)
    sized->variables.push_back({position, stride, less, rest, unit, low, high});
  for (const auto& [position, form] : used) sized->used.push_back({position, polynomial_from(form)});
  for (const auto& [position, form] : integers) sized->integers.push_back({position, polynomial_from(form)});
  for (const auto& [position, form] : filled) sized->filled.push_back({position, polynomial_from(form)});
  for (const auto& [position, factor, powers] : fractions) {
    sized->fractions.push_back({position, factor, {}});
    for (const auto& [form, power] : powers) sized->fractions.back().powers.emplace_back(polynomial_from(form), power);
  }
  if (repeats) {
    sized->repeats = true;
    for (const auto& [start, step, length, counted] : repeats->first) sized->floats.push_back({start, step, length, counted});
    for (const auto& [start, step, length, counted] : repeats->second) sized->ints.push_back({start, step, length, counted});
  }
  return sized;
}

}  // namespace

// PyTorch's kernel of these for every device calls a loop that is the CPU's.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : {"kaiser_window", "kaiser_window.periodic", "kaiser_window.beta"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&record_the_first>());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&record>()); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "torch-tinygrad's runtime: recorder, storages, program runner.";
  m.def("set_prepare", &set_prepare);
  m.def("set_up", &set_up);
  m.def("set_lacking", &set_lacking);
  m.def("set_most_bytes", &set_most_bytes);
  m.def("register_recorder", &register_recorder);
  m.def("wait_for_autograd", &wait_for_autograd);
  m.def("seed_for_cpu", &seed_for_cpu, "A seed for PyTorch's own generator, from the seed and the offset of our stream.");
  m.def("onednn_multiplies_faster", &onednn_multiplies_faster);
  m.def("multiplies_small_by_blocks", &multiplies_small_by_blocks);
  bind_explain(m);
  bind_recorded_graph(m);
  m.def("stats", &stats_dict);
  m.def("reset_stats", [] {
    DeviceLock lock;
    stats() = Stats();
    graphs_appended() = 0;
  });
  m.def(
      "flush", [](int device, const std::string& reason) { flush(static_cast<c10::DeviceIndex>(device), reason.c_str()); },
      py::call_guard<py::gil_scoped_release>());
  m.def("flush_step", &flush_step);
  m.def("assert_within", &assert_within_of_python, "Refuses values with a message, at once or after the flush that computes them.");
  m.def("pending", [](int device) {
    DeviceLock lock;
    return trace_of(static_cast<c10::DeviceIndex>(device)).nodes.size();
  });
  m.def("set_pending_bytes", [](int64_t bytes) {
    DeviceLock lock;
    bounds().bytes = bytes;
  });
  m.def("set_bounds", [](size_t nodes, size_t soft_nodes, int64_t bytes) {
    DeviceLock lock;
    bounds() = {nodes, soft_nodes, bytes};
  });
  m.def("set_program_bound", [](size_t bound) { program_bound() = bound; });
  m.def("clear_programs", &clear_programs);
  m.attr("LEAST_GRAPH") = kLeastGraph;
  m.def("compile_mode", [] { return static_cast<int>(compile_mode()); });
  m.def("set_compile_mode", [](int mode) { set_compile_mode(static_cast<Mode>(mode)); });
  m.def("mark_size", &mark_size);
  m.def("set_sizes_vary", [](bool vary) { return std::exchange(sizes_vary(), vary); });
  m.def("program_ready", [](const py::bytes& name, const py::bytes& bytes) { program_ready(name, bytes); });
  m.def("program_failed", [](const py::bytes& name, const std::string& reason, bool passing) { program_failed(name, reason, passing); });
  m.def("set_disk_cache", &set_disk_cache);
  m.def("load_note", [](const py::bytes& key) { return load_note(hash_from(key)); });
  m.def("save_note", [](const py::bytes& key, const std::string& text) { save_note(hash_from(key), text); });
  m.def("device_count", [] { return static_cast<int>(device_count()); });
  m.def("set_device_count", [](int count) { set_device_count(static_cast<c10::DeviceIndex>(count)); });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("set_current_device", [](int device) { set_current_device(static_cast<c10::DeviceIndex>(device)); });
  m.def("default_generator", [](int device) { return default_generator(static_cast<c10::DeviceIndex>(device)); });
  m.def("forked", &forked);
  m.def("check_fork", &check_fork);
  m.def("set_memory_limit", [](int device, size_t nbytes) { set_memory_limit(static_cast<c10::DeviceIndex>(device), nbytes); });
  m.def("host_mappings", [] {
    py::list all;
    for (const HostMapping& mapping : host_mappings()) {
      py::list stretches;
      for (const auto& s : mapping.stretches) stretches.append(py::make_tuple(reinterpret_cast<uintptr_t>(s.begin), s.size, s.in_use));
      all.append(py::make_tuple(reinterpret_cast<uintptr_t>(mapping.begin), mapping.size, stretches));
    }
    return all;
  });
  m.def(
      "host_view", [](const at::Tensor& t) { return host_view(t, "a view on the host"); }, py::call_guard<py::gil_scoped_release>(),
      "A CPU tensor on the same memory, or, where that is the device's own, a copy.");
  m.def("shared_view", &shared_view, py::call_guard<py::gil_scoped_release>());
  m.def(
      "from_host", [](const at::Tensor& t, int device) { return from_host(t, static_cast<c10::DeviceIndex>(device)); },
      py::call_guard<py::gil_scoped_release>());
  m.def("move_to", &move_to, py::call_guard<py::gil_scoped_release>());
  m.def("owner_view", [](const at::Tensor& t) -> std::optional<at::Tensor> {
    const at::Tensor view = owner_view(t);
    return view.defined() ? std::optional(view) : std::nullopt;
  });
  m.def(
      "buffer_address",
      [](const at::Tensor& t) {
        DeviceLock lock;
        return reinterpret_cast<uintptr_t>(realize(t, "buffer_address").host);
      },
      "Address of the bytes behind a tensor's storage, on devices that share the host's memory.");

  m.def("count_fallback", &count_fallback);
  m.def("nonzero_by_library", &nonzero_by_library, py::call_guard<py::gil_scoped_release>());
  m.def(
      "known_range",
      [](const at::Tensor& t) -> std::optional<std::pair<int64_t, int64_t>> {
        const Range range = range_of(t);
        return range.is_all() ? std::nullopt : std::optional(std::make_pair(range.low, range.high));
      },
      "The least and the greatest value that a tensor of integers may hold, as far as that is known without computing it.");

  py::class_<HostProgram, std::shared_ptr<HostProgram>>(m, "HostProgram")
      .def(py::init<>())
      .def_readwrite("inputs", &HostProgram::inputs)
      .def_readwrite("written", &HostProgram::written)
      .def_readwrite("outputs", &HostProgram::outputs)
      .def_readwrite("adopted", &HostProgram::adopted)
      .def_readwrite("made", &HostProgram::made)
      .def("release_after", &HostProgram::release_after)
      .def_readwrite("floats", &HostProgram::floats)
      .def_readwrite("ints", &HostProgram::ints)
      .def_readwrite("arena", &HostProgram::arena)
      .def_readwrite("sizes", &HostProgram::sizes)
      .def_readwrite("temporaries", &HostProgram::temporaries)
      .def_readwrite("taken", &HostProgram::taken)
      .def_readwrite("moved", &HostProgram::moved)
      .def_readwrite("storage_sizes", &HostProgram::storage_sizes)
      .def("integers", &integers_of)
      .def("first_size", &first_size_of)
      .def("skeleton", &skeleton_of)
      .def_readwrite("lifted", &HostProgram::lifted)
      .def_readwrite("kernels", &HostProgram::kernels)
      .def_readwrite("bytes_moved", &HostProgram::bytes_moved)
      .def_readwrite("fallbacks", &HostProgram::fallbacks)
      .def_readwrite("description", &HostProgram::description)
      .def("add_kernel",
           [](HostProgram& p, const py::bytes& image, Imports imports, const py::list& args, std::vector<int64_t> values, int threads,
              int core, bool beside, int64_t elements) {
             p.add_kernel(image, std::move(imports), slots_from(args), std::move(values), threads, core, beside, elements);
           })
      .def("add_constant", [](HostProgram& p, const py::bytes& bytes) { return p.add_constant(bytes); })
      .def("add_aten", &add_aten)
      .def("load", &HostProgram::load_images)
      .def("to_bytes",
           [](const HostProgram& p) -> py::object {
             const auto bytes = p.to_bytes();
             return bytes ? py::object(py::bytes(*bytes)) : py::none();
           })
      .def_static("from_bytes", [](const py::bytes& bytes) { return HostProgram::read_from(std::string_view(bytes)); });
  py::class_<SizedProgram, std::shared_ptr<SizedProgram>>(m, "SizedProgram")
      .def(py::init(&sized_program))
      .def("to_bytes", [](const SizedProgram& p) -> py::object {
        const auto bytes = p.to_bytes();
        return bytes ? py::object(py::bytes(*bytes)) : py::none();
      });
}

}  // namespace tiny
