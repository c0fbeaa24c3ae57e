// What a call of a graph records, kept and appended by later calls: the same nodes and the same key as recording it again
// would give, with the storages of the call's own arguments.
//
// A call is kept if all it did is in the nodes between its begin and its end: it read no values, drew no random numbers, left
// nothing behind but its results, and touched no storage but its arguments' and those it made. It is taken for what the graph
// always does once two calls have recorded the same. Any other call is recorded operator by operator.
#include "recorded_graph.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include <deque>
#include <unordered_map>

#include "call.h"
#include "device.h"
#include "flush.h"
#include "journal.h"
#include "looks.h"
#include "recorder.h"

namespace py = pybind11;

namespace tiny {
namespace {

struct TensorKind {
  c10::DispatchKeySet keys;
  at::ScalarType dtype;
  std::vector<int64_t> sizes, strides;
  int64_t offset;

  explicit TensorKind(const at::Tensor& t)
      : keys(t.key_set()), dtype(t.scalar_type()), sizes(t.sizes().vec()), strides(t.strides().vec()), offset(t.storage_offset()) {}
  bool is_of(const at::Tensor& t) const {
    return t.key_set() == keys && t.scalar_type() == dtype && t.storage_offset() == offset && t.sizes() == at::IntArrayRef(sizes) &&
           t.strides() == at::IntArrayRef(strides);
  }
};

// Whether every value that `now` allows `then` allowed too.
bool is_known_as_well(const Contents& now, const Contents& then) {
  if (then.range.is_all() || now.range.empty()) return true;
  return now.dtype == then.dtype && then.range.may_be(now.range.low) && then.range.may_be(now.range.high) &&
         (now.range.next > now.range.previous || (now.range.next >= then.range.next && now.range.previous <= then.range.previous));
}

Storage* storage_of(const at::Tensor& t) { return tiny::storage_of(t.storage().data_ptr()); }

struct Argument {
  TensorKind kind;
  Contents contents;  // what was known of its values: checks of indices rest on it
  int64_t versions = 0;
};

struct LocalStorage {
  int argument;  // or -1: the graph makes it
  size_t nbytes;
  bool is_written;
  Contents contents;  // afterwards
};

struct Result {
  enum class Kind { Same, Argument, Made } kind;
  py::object value;  // what is no tensor of the device, the same in each call
  int index = 0;     // of the argument, or of the storage
  std::optional<TensorKind> tensor;
};

struct Recording {
  c10::DeviceIndex device;
  c10::impl::PODLocalDispatchKeySet keys;
  std::vector<std::optional<Argument>> arguments;  // none: a number, in `numbers`
  std::vector<py::object> numbers;
  std::vector<LocalStorage> storages;
  std::vector<Result> results;
  Trace nodes;  // with storages numbered as above
  Hash hash;    // of all that a call does
  bool is_trusted = false;
};

c10::impl::PODLocalDispatchKeySet keys_now() {
  const auto set = c10::impl::tls_local_dispatch_key_set();
  c10::impl::PODLocalDispatchKeySet plain{};
  plain.set_included(set.included_);
  plain.set_excluded(set.excluded_);
  return plain;
}

bool is_number(const py::handle& value) { return PyLong_Check(value.ptr()) || PyFloat_Check(value.ptr()) || value.is_none(); }

// The state of everything before a graph runs.
struct Begin {
  c10::DeviceIndex device = -1;
  uint64_t serial, looks;
  size_t nodes, refs, regions, ints, numbers, values, storages;
  int64_t bytes;
  std::vector<std::optional<Argument>> arguments;
  std::vector<Storage*> of_arguments;
};

// As recording them over these storages would.
void append_nodes(Trace& trace, const Trace& part, c10::ArrayRef<StoragePtr> storages) {
  const auto first_ref = static_cast<uint32_t>(trace.refs.size()), first_region = static_cast<uint32_t>(trace.regions.size());
  const auto first_int = static_cast<uint32_t>(trace.ints.size()), first_number = static_cast<uint32_t>(trace.numbers.size());
  const auto first_value = static_cast<uint32_t>(trace.values.size());
  trace.ints.insert(trace.ints.end(), part.ints.begin(), part.ints.end());
  trace.numbers.insert(trace.numbers.end(), part.numbers.begin(), part.numbers.end());
  trace.values.insert(trace.values.end(), part.values.begin(), part.values.end());
  for (ArgRef ref : part.refs) {
    if (ref.kind == ArgRef::Kind::Region) ref.index += first_region;
    if (ref.kind == ArgRef::Kind::Number) ref.index += first_number;
    if (ref.kind == ArgRef::Kind::Value) ref.index += first_value;
    trace.refs.push_back(ref);
  }
  for (Node node : part.nodes) {
    for (uint32_t r = node.args; r < node.writes; r++) {
      if (part.refs[r].kind != ArgRef::Kind::Region) continue;
      Region region = part.regions[part.refs[r].index];
      region.storage = trace.number_of(storages[region.storage].get()), region.shape += first_int;
      trace.key.add(static_cast<uint64_t>(region.storage));
      trace.regions.push_back(region);
    }
    trace.key.add(node.hash.a);
    trace.key.add(node.hash.b);
    for (uint32_t* position : {&node.args, &node.outs, &node.writes, &node.end}) *position += first_ref;
    trace.nodes.push_back(node);
  }
  trace.bytes += part.bytes;
}

bool are_apart(const std::vector<Storage*>& storages) {
  std::vector<Storage*> sorted;
  for (Storage* s : storages)
    if (s != nullptr) sorted.push_back(s);
  std::sort(sorted.begin(), sorted.end());
  return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
}

class RecordedGraph {
 public:
  py::object append(const py::tuple& arguments);
  std::optional<Begin> begin(const py::tuple& arguments);
  void end(const Begin& begin, const py::tuple& arguments, const py::object& results);

 private:
  bool is_like(const Recording& recording, const py::tuple& arguments, std::vector<Storage*>& storages) const;
  std::optional<Recording> taken(const Begin& begin, const py::tuple& arguments, const py::object& results) const;

  static constexpr int kTries = 16;   // in vain, after which no more are made
  static constexpr size_t kMost = 8;  // of one graph: for other sizes and strides, and for what is known of indices
  std::deque<Recording> recordings_;  // the last first
  int in_vain_ = 0;
};

bool RecordedGraph::is_like(const Recording& recording, const py::tuple& arguments, std::vector<Storage*>& storages) const {
  if (arguments.size() != recording.arguments.size()) return false;
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
    storages[i] = storage_of(t);
    if (!storages[i]->lost.empty() || !is_known_as_well(storages[i]->contents, argument->contents)) return false;
  }
  return are_apart(storages);
}

py::object RecordedGraph::append(const py::tuple& arguments) {
  if (recordings_.size() < 2 || watched_by(Watcher::Explain)) return py::none();
  const auto keys = keys_now();
  std::vector<Storage*> given;
  bool full = false;
  py::list results;
  const Recording* found = nullptr;
  c10::DeviceIndex device = -1;
  {
    DeviceLock lock;
    for (const Recording& r : recordings_) {
      if (!r.is_trusted || !(r.keys.included() == keys.included()) || !(r.keys.excluded() == keys.excluded())) continue;
      if (is_like(r, arguments, given)) {
        found = &r;
        break;
      }
    }
    if (found == nullptr) return py::none();
    check_fork();
    const Recording& r = *found;
    device = r.device;
    c10::DeviceGuard guard(c10::Device(c10::DeviceType::PrivateUse1, r.device));
    std::vector<StoragePtr> storages(r.storages.size());
    for (const Result& result : r.results) {
      if (result.kind == Result::Kind::Same) {
        results.append(result.value);
      } else if (result.kind == Result::Kind::Argument) {
        results.append(arguments[result.index]);
      } else {
        const size_t nbytes = r.storages[result.index].nbytes;
        c10::DataPtr data = allocator()->allocate(nbytes);
        storages[result.index] = StoragePtr::reclaim_copy(tiny::storage_of(data));
        c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, std::move(data), allocator(), /*resizable=*/true);
        at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                                c10::scalarTypeToTypeMeta(result.tensor->dtype));
        t.unsafeGetTensorImpl()->set_sizes_and_strides(result.tensor->sizes, result.tensor->strides, result.tensor->offset);
        results.append(py::cast(t));
      }
    }
    for (size_t s = 0; s < storages.size(); s++) {
      if (storages[s]) continue;
      if (r.storages[s].argument >= 0) {
        storages[s] = StoragePtr::reclaim_copy(given[r.storages[s].argument]);
      } else {
        storages[s] = c10::make_intrusive<Storage>(r.device, r.storages[s].nbytes);
        storages[s]->live = false;
      }
    }
    Trace& trace = trace_of(r.device);
    append_nodes(trace, r.nodes, storages);
    for (size_t s = 0; s < storages.size(); s++)
      if (r.storages[s].is_written) storages[s]->written_in = trace.serial, storages[s]->contents = r.storages[s].contents;
    for (size_t i = 0; i < r.arguments.size(); i++)
      for (int64_t k = 0; r.arguments[i] && k < r.arguments[i]->versions; k++)
        THPVariable_Unpack(PyTuple_GET_ITEM(arguments.ptr(), i)).unsafeGetTensorImpl()->bump_version();
    stats().nodes += static_cast<int64_t>(r.nodes.nodes.size());
    graphs_appended()++;
    full = trace.nodes.size() >= bounds().nodes || trace.bytes >= bounds().bytes;
  }
  if (full) {
    py::gil_scoped_release no_gil;
    flush(device, "the bound on pending work", /*whole_steps=*/true);
  }
  return py::tuple(results);
}

std::optional<Begin> RecordedGraph::begin(const py::tuple& arguments) {
  if (in_vain_ >= kTries) return std::nullopt;
  Begin b;
  for (const auto& given : arguments) {
    b.arguments.emplace_back();
    b.of_arguments.push_back(nullptr);
    if (!THPVariable_Check(given.ptr())) {
      if (!is_number(given)) return in_vain_++, std::nullopt;
      continue;
    }
    const at::Tensor& t = THPVariable_Unpack(given.ptr());
    if (!is_tiny(t) || t.layout() != at::kStrided || (b.device >= 0 && t.device().index() != b.device)) return in_vain_++, std::nullopt;
    b.device = t.device().index();
    b.of_arguments.back() = storage_of(t);
    b.arguments.back() = Argument{TensorKind(t), b.of_arguments.back()->contents, t.is_inference() ? 0 : t._version()};
  }
  if (b.device < 0 || !are_apart(b.of_arguments)) return in_vain_++, std::nullopt;
  DeviceLock lock;
  const Trace& trace = trace_of(b.device);
  b.serial = trace.serial, b.looks = looks, b.bytes = trace.bytes;
  b.nodes = trace.nodes.size(), b.refs = trace.refs.size(), b.regions = trace.regions.size(), b.ints = trace.ints.size();
  b.numbers = trace.numbers.size(), b.values = trace.values.size(), b.storages = trace.storages.size();
  return b;
}

std::optional<Recording> RecordedGraph::taken(const Begin& b, const py::tuple& arguments, const py::object& results) const {
  const Trace& trace = trace_of(b.device);
  if (trace.serial != b.serial || looks != b.looks || trace.nodes.size() == b.nodes || !PyTuple_Check(results.ptr())) return std::nullopt;
  Recording r;
  r.device = b.device, r.keys = keys_now(), r.arguments = b.arguments;
  std::unordered_map<Storage*, int> of_arguments, locals;
  for (size_t i = 0; i < arguments.size(); i++) {
    r.numbers.push_back(r.arguments[i] ? py::none() : py::reinterpret_borrow<py::object>(arguments[i]));
    if (!r.arguments[i]) continue;
    const at::Tensor& t = THPVariable_Unpack(PyTuple_GET_ITEM(arguments.ptr(), i));
    if (storage_of(t) != b.of_arguments[i] || !r.arguments[i]->kind.is_of(t)) return std::nullopt;
    r.arguments[i]->versions = t.is_inference() ? 0 : t._version() - r.arguments[i]->versions;
    of_arguments[b.of_arguments[i]] = static_cast<int>(i);
  }
  Hash& hash = r.hash;
  auto local = [&](Storage* storage) -> int {
    const auto [it, is_new] = locals.try_emplace(storage, static_cast<int>(r.storages.size()));
    if (is_new) {
      const auto argument = of_arguments.find(storage);
      const int number = argument == of_arguments.end() ? -1 : argument->second;
      r.storages.push_back({number, storage->nbytes, false, storage->contents});
      hash.add(static_cast<uint64_t>(number)), hash.add(storage->nbytes);
    }
    return it->second;
  };
  Trace& kept = r.nodes;
  kept.bytes = trace.bytes - b.bytes;
  for (size_t n = b.nodes; n < trace.nodes.size(); n++) {
    Node node = trace.nodes[n];
    if (node.op->random || node.op->refuses || node.op->dynamic) return std::nullopt;
    hash.add(node.hash.a), hash.add(node.hash.b);
    for (uint32_t* end : {&node.args, &node.outs, &node.writes, &node.end}) *end -= b.refs;
    kept.nodes.push_back(node);
  }
  for (size_t i = b.refs; i < trace.refs.size(); i++) {
    ArgRef ref = trace.refs[i];
    if (ref.kind == ArgRef::Kind::Region) ref.index -= b.regions;
    if (ref.kind == ArgRef::Kind::Number) ref.index -= b.numbers;
    if (ref.kind == ArgRef::Kind::Value) ref.index -= b.values;
    kept.refs.push_back(ref);
    hash.add(static_cast<uint64_t>(ref.kind)), hash.add(static_cast<uint64_t>(ref.index));
  }
  for (size_t i = b.regions; i < trace.regions.size(); i++) {
    Region region = trace.regions[i];
    Storage* storage = trace.storages[region.storage].get();
    // One that was there before, or that got bytes in another way than by a node.
    const bool is_argument = of_arguments.count(storage) != 0;
    if (!is_argument && (region.storage < b.storages || storage->buffer != nullptr)) return std::nullopt;
    region.storage = local(storage), region.shape -= b.ints;
    kept.regions.push_back(region);
    hash.add(static_cast<uint64_t>(region.storage)), hash.add(static_cast<uint64_t>(region.offset));
    hash.add(static_cast<uint64_t>(region.dtype));
  }
  for (const Node& node : kept.nodes)
    for (uint32_t i = node.outs; i < node.end; i++)
      if (kept.refs[i].kind == ArgRef::Kind::Region) r.storages[kept.regions[kept.refs[i].index].storage].is_written = true;
  kept.ints.assign(trace.ints.begin() + b.ints, trace.ints.end());
  hash.add(c10::IntArrayRef(kept.ints));
  kept.numbers.assign(trace.numbers.begin() + b.numbers, trace.numbers.end());
  for (const Number& number : kept.numbers) hash.add(static_cast<uint64_t>(number.i));
  kept.values.assign(trace.values.begin() + b.values, trace.values.end());

  std::vector<bool> is_result(r.storages.size());
  for (const auto& value : py::reinterpret_borrow<py::tuple>(results)) {
    Result result{Result::Kind::Same, py::reinterpret_borrow<py::object>(value), 0, std::nullopt};
    if (THPVariable_Check(value.ptr())) {
      const at::Tensor& t = THPVariable_Unpack(value.ptr());
      if (!is_tiny(t) || t.requires_grad()) return std::nullopt;
      Storage* storage = storage_of(t);
      if (const auto argument = of_arguments.find(storage); argument != of_arguments.end()) {
        if (value.ptr() != PyTuple_GET_ITEM(arguments.ptr(), argument->second)) return std::nullopt;  // a view of it
        result = {Result::Kind::Argument, {}, argument->second, std::nullopt};
      } else {
        const auto made = locals.find(storage);
        if (made == locals.end() || is_result[made->second] || t.storage().use_count() != 1) return std::nullopt;
        is_result[made->second] = true;
        result = {Result::Kind::Made, {}, made->second, TensorKind(t)};
        hash.add(at::IntArrayRef(result.tensor->sizes)), hash.add(at::IntArrayRef(result.tensor->strides));
        hash.add(static_cast<uint64_t>(t.storage_offset())), hash.add(static_cast<uint64_t>(t.scalar_type()));
      }
    } else if (!is_number(value)) {
      return std::nullopt;
    }
    hash.add(static_cast<uint64_t>(result.kind)), hash.add(static_cast<uint64_t>(result.index));
    r.results.push_back(std::move(result));
  }
  for (const auto& [storage, number] : locals)  // something else than the results holds it: the graph had another effect
    if (r.storages[number].argument < 0 && !is_result[number] && storage->live) return std::nullopt;
  return r;
}

void RecordedGraph::end(const Begin& begin, const py::tuple& arguments, const py::object& results) {
  DeviceLock lock;
  auto recording = taken(begin, arguments, results);
  in_vain_++;
  if (!recording) return;
  for (Recording& other : recordings_) {
    if (!(other.hash == recording->hash)) continue;
    recording->is_trusted = other.is_trusted = true;
    in_vain_ = 0;
  }
  recordings_.push_front(std::move(*recording));
  if (recordings_.size() > kMost) recordings_.pop_back();
}

}  // namespace

int64_t& graphs_appended() {
  static int64_t count = 0;
  return count;
}

void bind_recorded_graph(py::module_& m) {
  py::class_<Begin>(m, "Begin");
  py::class_<RecordedGraph>(m, "RecordedGraph")
      .def(py::init<>())
      .def("append", &RecordedGraph::append)
      .def("begin", &RecordedGraph::begin)
      .def("end", &RecordedGraph::end);
}

}  // namespace tiny
