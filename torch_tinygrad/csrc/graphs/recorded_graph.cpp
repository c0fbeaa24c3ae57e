// What a call of a graph records, kept and appended by later calls: the same nodes and the same key as recording it again
// would give, with the storages of the call's own arguments.
//
// A call is kept if all it did is in the nodes between its begin and its end: it read no values, left nothing behind but its
// results, and touched no storage but its arguments' and those it made. It is taken for what the graph always does once two
// calls have recorded the same. If its results need gradients, so must two backward passes have (graph_backward.h). Any other
// call is recorded operator by operator.
#include "graphs/recorded_graph.h"

#include <ATen/SavedTensorHooks.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <deque>

#include "flush/flush.h"
#include "flush/journal.h"
#include "graphs/graph_backward.h"
#include "record/call.h"
#include "record/looks.h"
#include "record/recorder.h"

namespace py = pybind11;

namespace tiny {
namespace {

bool is_number(const py::handle& value) { return PyLong_Check(value.ptr()) || PyFloat_Check(value.ptr()) || value.is_none(); }

bool is_forward_differentiated(const at::Tensor& t) {
  return t.unsafeGetTensorImpl()->autograd_meta() != nullptr && t._fw_grad(/*level=*/0).defined();
}

// Whether somebody wants to see each operator, or what it saves.
bool is_looked_at() {
  return watched_by(Watcher::Explain) || torch::autograd::AnomalyMode::is_enabled() ||
         !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

// The state of everything before a graph runs.
struct Begin {
  c10::DeviceIndex device = -1;
  std::optional<Mark> mark;
  std::vector<std::optional<Recording::Argument>> arguments;
  std::vector<Storage*> storages;  // of arguments
  std::shared_ptr<Gates> gates;    // of those that need gradients
};

class RecordedGraph final : public GraphOwner, public std::enable_shared_from_this<RecordedGraph> {
 public:
  explicit RecordedGraph(py::function run) : run_(std::move(run)) {}

  py::object append(const py::tuple& arguments);
  std::optional<Begin> begin(const py::tuple& arguments);
  std::optional<Begin> begin_with_gates(const py::tuple& arguments);
  py::object end(const Begin& begin, const py::tuple& arguments, const py::object& results);

  py::tuple run(const py::tuple& arguments, const Recording& as, std::vector<StoragePtr>& storages) override;
  void keep(std::shared_ptr<Recording> recording, std::shared_ptr<BackwardRecording> backward) override;
  void give_up() override;

 private:
  using Storages = std::unordered_map<Storage*, int>;
  bool is_like(const Recording& recording, const py::tuple& arguments, std::vector<Storage*>& storages, bool& is_known) const;
  std::shared_ptr<Recording> find(const py::tuple& arguments, std::vector<Storage*>& storages, bool& is_known) const;
  std::shared_ptr<Recording> taken(const Begin& begin, const py::tuple& arguments, const py::object& results, Storages& numbers) const;
  std::optional<Recording::Result> result_of(const py::handle& value, const Recording& recording, const py::tuple& arguments,
                                             const Storages& numbers, std::vector<bool>& is_result) const;

  static constexpr int kTries = 16;                    // in vain, after which no more are made
  static constexpr size_t kMost = 8;                   // of one graph: for other sizes and strides, and for what is known of indices
  std::deque<std::shared_ptr<Recording>> recordings_;  // the last first
  int in_vain_ = 0;
  py::function run_;
};

// The storages of a part that was just recorded, by number.
std::vector<StoragePtr> in_order(const std::unordered_map<Storage*, int>& numbers) {
  std::vector<StoragePtr> storages(numbers.size());
  for (const auto& [storage, number] : numbers) storages[number] = StoragePtr::reclaim_copy(storage);
  return storages;
}

const at::Tensor& tensor_at(const py::tuple& values, size_t i) { return THPVariable_Unpack(PyTuple_GET_ITEM(values.ptr(), i)); }

// ---- appending ---------------------------------------------------------------------------------------------------

bool RecordedGraph::is_like(const Recording& recording, const py::tuple& arguments, std::vector<Storage*>& storages, bool& is_known) const {
  if (arguments.size() != recording.arguments.size()) return false;
  is_known = true;
  size_t local = 0;
  storages.assign(arguments.size(), nullptr);
  for (size_t i = 0; i < arguments.size(); i++) {
    PyObject* given = PyTuple_GET_ITEM(arguments.ptr(), i);
    const auto& argument = recording.arguments[i];
    if (!argument) {
      if (Py_TYPE(given) != Py_TYPE(recording.numbers[i].ptr()) || !recording.numbers[i].equal(py::handle(given))) return false;
      continue;
    }
    if (!THPVariable_Check(given)) return false;
    const at::Tensor& t = THPVariable_Unpack(given);
    if (!is_tiny(t) || t.device().index() != recording.device || !argument->kind.is_of(t)) return false;
    if (t.requires_grad() != argument->requires_grad || is_forward_differentiated(t)) return false;
    storages[i] = storage_of(t);
    if (!storages[i]->lost.empty() || storages[i]->shrunk) return false;
    const bool is_checked = recording.part.locals[local++].is_checked;
    if (is_known_as_well(storages[i]->contents, argument->contents)) continue;
    if (is_checked) return false;
    is_known = false;
  }
  return are_apart(storages);
}

std::shared_ptr<Recording> RecordedGraph::find(const py::tuple& arguments, std::vector<Storage*>& storages, bool& is_known) const {
  const Surroundings now = Surroundings::now();
  for (const auto& r : recordings_)
    if (r->is_trusted && r->grad_mode == at::GradMode::is_enabled() && r->surroundings == now && is_like(*r, arguments, storages, is_known))
      return r;
  return nullptr;
}

py::object RecordedGraph::append(const py::tuple& arguments) {
  if (recordings_.size() < 2 || is_looked_at()) return py::none();
  keep_backward_here();
  std::vector<Storage*> given;
  std::shared_ptr<Recording> r;
  std::vector<at::Tensor> made;
  std::vector<StoragePtr> storages;
  bool full = false, is_known = true;
  {
    DeviceLock lock;
    r = find(arguments, given, is_known);
    if (!r) return py::none();
    check_fork();
    c10::DeviceGuard guard(c10::Device(c10::DeviceType::PrivateUse1, r->device));
    storages.resize(r->part.locals.size());
    made.resize(r->results.size());
    for (size_t i = 0; i < made.size(); i++) {
      const auto& result = r->results[i];
      if (result.kind != Recording::Result::Kind::Made) continue;
      const size_t nbytes = r->part.locals[result.index].nbytes;
      c10::DataPtr data = allocator()->allocate(nbytes);
      storages[result.index] = StoragePtr::reclaim_copy(tiny::storage_of(data));
      made[i] =
          result.tensor->made_over(c10::Storage(c10::Storage::use_byte_size_t(), nbytes, std::move(data), allocator(), /*resizable=*/true));
    }
    for (size_t s = 0; s < storages.size(); s++)
      if (r->part.locals[s].given >= 0) storages[s] = StoragePtr::reclaim_copy(given[r->part.locals[s].given]);
    Trace& trace = trace_of(r->device);
    r->part.append_to(trace, storages, is_known);
    for (size_t i = 0; i < r->arguments.size(); i++)
      for (int64_t k = 0; r->arguments[i] && k < r->arguments[i]->versions; k++)
        tensor_at(arguments, i).unsafeGetTensorImpl()->bump_version();
    graphs_appended()++;
    full = trace.nodes.size() >= bounds().nodes || trace.bytes >= bounds().bytes;
    if (r->backward) {
      std::vector<at::Tensor> held(arguments.size());
      for (size_t i = 0; i < held.size(); i++)
        if (r->arguments[i]) held[i] = tensor_at(arguments, i);
      const auto [node, backward] = GraphBackward::make(shared_from_this(), r, std::move(held));
      backward->hold_appended(made, storages);
      for (size_t i = 0; i < made.size(); i++)
        if (r->results[i].requires_grad) torch::autograd::impl::set_gradient_edge(made[i], {node, node->add_input_metadata(made[i])});
    }
  }
  py::tuple results(made.size());
  for (size_t i = 0; i < made.size(); i++) {
    using Kind = Recording::Result::Kind;
    const auto& result = r->results[i];
    results[i] = result.kind == Kind::Same       ? result.value
                 : result.kind == Kind::Argument ? py::reinterpret_borrow<py::object>(arguments[result.index])
                                                 : py::cast(made[i]);
  }
  if (full) {
    py::gil_scoped_release no_gil;
    flush(r->device, "the bound on pending work", /*whole_steps=*/true);
  }
  return std::move(results);
}

// ---- recording ---------------------------------------------------------------------------------------------------

std::optional<Begin> RecordedGraph::begin(const py::tuple& arguments) {
  if (in_vain_ >= kTries || is_looked_at()) return std::nullopt;
  Begin b;
  for (const auto& given : arguments) {
    b.arguments.emplace_back();
    b.storages.push_back(nullptr);
    if (!THPVariable_Check(given.ptr())) {
      if (!is_number(given)) return in_vain_++, std::nullopt;
      continue;
    }
    const at::Tensor& t = THPVariable_Unpack(given.ptr());
    if (!is_tiny(t) || t.layout() != at::kStrided || (b.device >= 0 && t.device().index() != b.device)) return in_vain_++, std::nullopt;
    if (is_forward_differentiated(t)) return in_vain_++, std::nullopt;
    b.device = t.device().index();
    b.storages.back() = storage_of(t);
    b.arguments.back() = Recording::Argument{TensorKind(t), b.storages.back()->contents, t.requires_grad(), version_of(t)};
  }
  if (b.device < 0 || !are_apart(b.storages)) return in_vain_++, std::nullopt;
  DeviceLock lock;
  b.mark.emplace(trace_of(b.device));
  return b;
}

std::optional<Begin> RecordedGraph::begin_with_gates(const py::tuple& arguments) {
  auto b = begin(arguments);
  if (!b) return b;
  std::vector<at::Tensor> differentiable;
  for (size_t i = 0; at::GradMode::is_enabled() && i < b->arguments.size(); i++)
    if (b->arguments[i] && b->arguments[i]->requires_grad) differentiable.push_back(tensor_at(arguments, i));
  b->gates = std::make_shared<Gates>(std::move(differentiable));
  return b;
}

std::optional<Recording::Result> RecordedGraph::result_of(const py::handle& value, const Recording& recording, const py::tuple& arguments,
                                                          const Storages& numbers, std::vector<bool>& is_result) const {
  using Kind = Recording::Result::Kind;
  if (!THPVariable_Check(value.ptr())) {
    if (!is_number(value)) return std::nullopt;
    return Recording::Result{Kind::Same, py::reinterpret_borrow<py::object>(value)};
  }
  const at::Tensor& t = THPVariable_Unpack(value.ptr());
  if (!is_tiny(t)) return std::nullopt;
  const auto found = numbers.find(storage_of(t));
  if (found == numbers.end()) return std::nullopt;
  const int number = found->second, given = recording.part.locals[number].given;
  if (given >= 0) {
    if (value.ptr() != PyTuple_GET_ITEM(arguments.ptr(), given)) return std::nullopt;  // a view of it
    return Recording::Result{Kind::Argument, {}, given};
  }
  if (is_result[number] || (t.requires_grad() && t.is_leaf())) return std::nullopt;
  is_result[number] = true;
  return Recording::Result{Kind::Made, {}, number, TensorKind(t), t.requires_grad()};
}

std::shared_ptr<Recording> RecordedGraph::taken(const Begin& b, const py::tuple& arguments, const py::object& results,
                                                Storages& numbers) const {
  if (!PyTuple_Check(results.ptr())) return nullptr;
  auto r = shared_with_python(new Recording{b.device, Surroundings::now(), at::GradMode::is_enabled(), b.arguments});
  for (size_t i = 0; i < arguments.size(); i++) {
    r->numbers.push_back(r->arguments[i] ? py::none() : py::reinterpret_borrow<py::object>(arguments[i]));
    if (!r->arguments[i]) continue;
    const at::Tensor& t = tensor_at(arguments, i);
    if (storage_of(t) != b.storages[i] || !r->arguments[i]->kind.is_of(t) || t.requires_grad() != r->arguments[i]->requires_grad)
      return nullptr;
    r->arguments[i]->versions = version_of(t) - r->arguments[i]->versions;
  }
  auto part = TracePart::since(*b.mark, trace_of(b.device), b.storages, numbers);
  if (!part) return nullptr;
  r->part = std::move(*part);
  Hash& hash = r->hash = r->part.hash;
  for (const auto& argument : r->arguments) hash.add(static_cast<uint64_t>(argument && argument->requires_grad));
  std::vector<bool> is_result(r->part.locals.size());
  for (const auto& value : py::reinterpret_borrow<py::tuple>(results)) {
    auto result = result_of(value, *r, arguments, numbers, is_result);
    if (!result) return nullptr;
    if (result->tensor) result->tensor->add_to(hash);
    hash.add(static_cast<uint64_t>(result->kind)), hash.add(static_cast<uint64_t>(result->index));
    hash.add(static_cast<uint64_t>(result->requires_grad));
    r->results.push_back(std::move(*result));
  }
  if (const size_t differentiable = r->differentiable_results(); differentiable > 0) {
    // Which of them get gradients may differ from pass to pass.
    if (!r->grad_mode || (differentiable > 1 && !r->is_pure())) return nullptr;
    r->backward = std::make_shared<BackwardRecordings>();
    return r;
  }
  if (r->is_held(in_order(numbers))) return nullptr;  // the graph had another effect
  for (const auto& value : py::reinterpret_borrow<py::tuple>(results)) {
    if (!THPVariable_Check(value.ptr())) continue;
    const at::Tensor& t = THPVariable_Unpack(value.ptr());
    if (r->part.locals[numbers.at(storage_of(t))].given < 0 && t.storage().use_count() != 1) return nullptr;
  }
  return r;
}

py::object RecordedGraph::end(const Begin& begin, const py::tuple& arguments, const py::object& results) {
  DeviceLock lock;
  Storages numbers;
  in_vain_++;
  if (!begin.gates->restore()) return results;
  auto recording = taken(begin, arguments, results, numbers);
  if (!recording) return results;
  if (!recording->backward) {
    keep(std::move(recording), nullptr);
    return results;
  }
  std::vector<at::Tensor> held(arguments.size()), differentiable;
  for (size_t i = 0; i < held.size(); i++)
    if (recording->arguments[i]) held[i] = tensor_at(arguments, i);
  const auto given = py::reinterpret_borrow<py::tuple>(results);
  for (size_t i = 0; i < given.size(); i++)
    if (recording->results[i].requires_grad) differentiable.push_back(tensor_at(given, i));
  const auto [node, backward] = GraphBackward::make(shared_from_this(), recording, std::move(held));
  backward->hold_recorded(differentiable, in_order(numbers), begin.gates);
  py::tuple replaced(given.size());
  for (size_t i = 0, k = 0; i < given.size(); i++) {
    replaced[i] = given[i];
    if (!recording->results[i].requires_grad) continue;
    at::Tensor& t = differentiable[k++];
    torch::autograd::impl::set_gradient_edge(t, {node, node->add_input_metadata(t)});
    replaced[i] = py::cast(t);
  }
  return std::move(replaced);
}

py::tuple RecordedGraph::run(const py::tuple& arguments, const Recording& as, std::vector<StoragePtr>& storages) {
  auto b = begin(arguments);
  py::object results = run_(*arguments);
  if (b) {
    DeviceLock lock;
    Storages numbers;
    const auto recording = taken(*b, arguments, results, numbers);
    if (recording && recording->hash == as.hash) storages = in_order(numbers);
  }
  return results;
}

void RecordedGraph::keep(std::shared_ptr<Recording> recording, std::shared_ptr<BackwardRecording> backward) {
  DeviceLock lock;
  if (in_vain_ > kTries) return;
  const bool is_differentiable = recording->backward != nullptr;
  for (const auto& other : recordings_) {
    if (!(other->hash == recording->hash) || (other->backward != nullptr) != is_differentiable) continue;
    recording->backward = other->backward;
    if (!is_differentiable) recording->is_trusted = other->is_trusted = true, in_vain_ = 0;
  }
  if (is_differentiable) {
    recording->backward->add(std::move(backward));
    if (recording->backward->is_trusted()) {
      in_vain_ = 0;
      for (const auto& other : recordings_)
        if (other->backward == recording->backward) recording->is_trusted = other->is_trusted = true;
    }
    if (std::find(recordings_.begin(), recordings_.end(), recording) != recordings_.end()) return;
  }
  recordings_.push_front(std::move(recording));
  if (recordings_.size() > kMost) recordings_.pop_back();
}

void RecordedGraph::give_up() {
  DeviceLock lock;
  in_vain_ = kTries + 1;
  recordings_.clear();
}

}  // namespace

void bind_recorded_graph(py::module_& m) {
  py::class_<Begin>(m, "Begin");
  py::class_<RecordedGraph, std::shared_ptr<RecordedGraph>>(m, "RecordedGraph")
      .def(py::init([](py::function run) { return shared_with_python(new RecordedGraph(std::move(run))); }))
      .def("append", &RecordedGraph::append)
      .def("begin", &RecordedGraph::begin_with_gates)
      .def("end", &RecordedGraph::end);
}

}  // namespace tiny
