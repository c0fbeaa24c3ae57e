#include "graphs/graph_backward.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "device/device.h"
#include "flush/flush.h"
#include "record/call.h"
#include "record/recorder.h"

namespace tiny {
namespace {

// The same memory and the same version counter, without a history.
at::Tensor without_history(const at::Tensor& t) {
  auto* impl = t.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/true));
}

class AutocastTo {
 public:
  explicit AutocastTo(at::ScalarType type) { at::autocast::set_autocast_dtype(at::kPrivateUse1, type); }
  ~AutocastTo() { at::autocast::set_autocast_dtype(at::kPrivateUse1, before_); }
  AutocastTo(const AutocastTo&) = delete;
  AutocastTo& operator=(const AutocastTo&) = delete;

 private:
  at::ScalarType before_ = at::autocast::get_autocast_dtype(at::kPrivateUse1);
};

torch::autograd::edge_list roots(const torch::autograd::edge_list& results, const variable_list& gradients) {
  torch::autograd::edge_list found;
  for (size_t i = 0; i < gradients.size(); i++)
    if (gradients[i].defined()) found.push_back(results[i]);
  return found;
}

variable_list defined(variable_list gradients) {
  gradients.erase(std::remove_if(gradients.begin(), gradients.end(), [](const at::Tensor& g) { return !g.defined(); }), gradients.end());
  return gradients;
}

// As a tensor of this kind; it is dense, so that it can be.
at::Tensor laid_out_as(const at::Tensor& t, const TensorKind& kind) {
  int64_t last = kind.offset;
  for (size_t d = 0; d < kind.sizes.size(); d++) last += (kind.sizes[d] - 1) * kind.strides[d];
  at::Tensor made = at::empty({last + 1}, t.options()).as_strided(kind.sizes, kind.strides, kind.offset);
  return made.copy_(t);
}

}  // namespace

// ---- what it holds -----------------------------------------------------------------------------------------------

std::pair<NodePtr, GraphBackward*> GraphBackward::make(std::shared_ptr<GraphOwner> owner, std::shared_ptr<Recording> recording,
                                                       std::vector<at::Tensor> arguments) {
  auto* made = new GraphBackward(std::move(owner), std::move(recording), std::move(arguments));
  return {owned_node<NodePtr>(made), made};
}

GraphBackward::GraphBackward(std::shared_ptr<GraphOwner> owner, std::shared_ptr<Recording> recording, std::vector<at::Tensor> arguments)
    : owner_(std::move(owner)), recording_(std::move(recording)), arguments_(std::move(arguments)) {
  torch::autograd::edge_list edges;
  for (size_t i = 0; i < arguments_.size(); i++) {
    at::Tensor& t = arguments_[i];
    versions_.push_back(t.defined() ? version_of(t) : 0);
    const bool is_differentiable = recording_->is_differentiable(i);
    if (is_differentiable) edges.push_back(torch::autograd::impl::gradient_edge(t));
    // One that is written later may lead here through its history.
    if (t.defined() && !(is_differentiable && t.is_leaf())) t = without_history(t);
  }
  set_next_edges(std::move(edges));
}

void GraphBackward::hold_recorded(std::vector<at::Tensor>& results, std::vector<StoragePtr> storages, std::shared_ptr<Gates> gates) {
  inside_.gates = std::move(gates), inside_.storages = std::move(storages);
  for (at::Tensor& result : results) {
    inside_.results.push_back(torch::autograd::impl::gradient_edge(result));
    result = without_history(result);
  }
}

void GraphBackward::hold_appended(const std::vector<at::Tensor>& results, const std::vector<StoragePtr>& storages) {
  is_appended_ = true;
  const auto& saved = recording_->backward->saved;
  saved_.resize(storages.size());
  for (size_t s = 0; s < storages.size(); s++) {
    if (s >= saved.size() || !saved[s] || recording_->part.locals[s].given >= 0) continue;
    if (!storages[s]->live) saved_[s].storage = storages[s], storages[s]->live = true;
  }
  for (size_t r = 0; r < results.size(); r++) {
    const size_t s = recording_->results[r].index;
    if (!results[r].defined() || s >= saved.size() || !saved[s]) continue;
    saved_[s].storage.reset();
    saved_[s].result = without_history(results[r]), saved_[s].version = version_of(results[r]);
  }
}

void GraphBackward::let_go() {
  for (Saved& saved : saved_)
    if (saved.storage) saved.storage->live = false;
  saved_.clear();
  arguments_.clear();
}

// Also called when it is destroyed: what is inside may have other owners.
void GraphBackward::release_variables() {
  is_released_ = is_appended_;
  let_go();
}

// ---- a backward pass ---------------------------------------------------------------------------------------------

variable_list GraphBackward::apply(variable_list&& gradients) {
  TORCH_CHECK(!is_released_, torch::autograd::ERR_BACKWARD_TWICE);
  std::vector<bool> wanted(num_outputs());
  for (size_t i = 0; i < wanted.size(); i++) wanted[i] = task_should_compute_output(i);
  if (at::GradMode::is_enabled()) return differentiable(gradients, wanted);
  variable_list given = apart(std::move(gradients));
  if (is_appended_) {
    if (auto recording = find(given, wanted)) {
      variable_list results = append(*recording, given);
      for (size_t i = 0; i < wanted.size(); i++)
        if (!wanted[i]) results[i] = at::Tensor();
      return results;
    }
    take_in(run_again());
  }
  const auto device = recording_->device;
  std::optional<Mark> mark;
  if (!inside_.storages.empty() && !torch::autograd::get_current_graph_task_keep_graph()) {
    DeviceLock lock;
    mark.emplace(trace_of(device));
  }
  variable_list results = run_inside(given, wanted);
  if (!mark) return results;
  DeviceLock lock;
  auto recording = BackwardRecording::taken(*recording_, inside_.storages, *mark, given, wanted, results);
  // What nothing but autograd held is free now; where it is not, the graph had another effect.
  if (recording && !recording_->is_held(inside_.storages)) owner_->keep(recording_, std::move(recording));
  return results;
}

// Gradients without overlap, each on memory of its own.
variable_list GraphBackward::apart(variable_list gradients) const {
  std::vector<Storage*> seen;
  for (const auto& storage : inside_.storages) seen.push_back(storage.get());
  for (const Saved& saved : saved_) seen.push_back(saved.result.defined() ? storage_of(saved.result) : saved.storage.get());
  for (const at::Tensor& argument : arguments_) seen.push_back(argument.defined() ? storage_of(argument) : nullptr);
  for (at::Tensor& g : gradients) {
    if (!g.defined() || !is_tiny(g) || g.layout() != at::kStrided) continue;
    const bool is_shared = std::find(seen.begin(), seen.end(), storage_of(g)) != seen.end();
    if (is_shared || !g.is_non_overlapping_and_dense()) g = g.clone(at::MemoryFormat::Contiguous);
    seen.push_back(storage_of(g));
  }
  return gradients;
}

// The gradients are laid out as they were when it was recorded.
std::shared_ptr<BackwardRecording> GraphBackward::find(variable_list& gradients, const std::vector<bool>& wanted) const {
  std::shared_ptr<BackwardRecording> found;
  {
    DeviceLock lock;
    found = recording_->backward->find(gradients, wanted);
  }
  if (!found) return nullptr;
  // Whether all was saved that it reads: this call may have been appended before that was known.
  for (const auto& local : found->part.locals) {
    if (local.given < 0 || static_cast<size_t>(local.given) >= saved_.size() || !local.is_used) continue;
    const bool is_argument = recording_->part.locals[local.given].given >= 0;
    if (!is_argument && !saved_[local.given].storage && !saved_[local.given].result.defined()) return nullptr;
  }
  for (size_t i = 0; i < gradients.size(); i++)
    if (found->given[i] && !found->given[i]->is_of(gradients[i])) gradients[i] = laid_out_as(gradients[i], *found->given[i]);
  return found;
}

// Of what the forward pass left.
StoragePtr GraphBackward::storage_read(size_t local) const {
  const int argument = recording_->part.locals[local].given;
  const Saved& saved = saved_[local];
  if (argument < 0 && saved.storage) return saved.storage;
  const at::Tensor& t = argument >= 0 ? arguments_[argument] : saved.result;
  const int64_t version = argument >= 0 ? versions_[argument] : saved.version;
  TORCH_CHECK(version_of(t) == version, "one of the variables needed for gradient computation has been modified by an inplace operation: [",
              t.toString(), " ", t.sizes(), "], which a compiled graph ", argument >= 0 ? "was called with" : "returned",
              ", is at version ", version_of(t), "; expected version ", version, " instead.");
  if (argument >= 0)
    TORCH_CHECK(recording_->arguments[argument]->kind.is_of(t),
                "a tensor that a compiled graph was called with got other data before the backward pass read it");
  return StoragePtr::reclaim_copy(storage_of(t));
}

variable_list GraphBackward::append(const BackwardRecording& recording, const variable_list& gradients) const {
  const auto device = recording_->device;
  const auto& locals = recording.part.locals;
  const size_t before = recording_->part.locals.size();
  c10::DeviceGuard guard(c10::Device(c10::DeviceType::PrivateUse1, device));
  variable_list results(recording.gradients.size());
  bool full = false;
  {
    DeviceLock lock;
    check_fork();
    std::vector<StoragePtr> storages(locals.size());
    for (size_t s = 0; s < locals.size(); s++) {
      if (locals[s].given < 0 || !locals[s].is_used) continue;
      const auto given = static_cast<size_t>(locals[s].given);
      storages[s] = given < before ? storage_read(given) : StoragePtr::reclaim_copy(storage_of(gradients[given - before]));
      check_readable(*storages[s]);
    }
    std::vector<c10::Storage> made(locals.size());
    for (size_t i = 0; i < results.size(); i++) {
      const auto& gradient = recording.gradients[i];
      using Kind = BackwardRecording::Gradient::Kind;
      if (gradient.kind == Kind::Given) results[i] = gradients[gradient.index];
      if (gradient.kind == Kind::Earlier) results[i] = results[gradient.index];
      if (gradient.kind != Kind::Made) continue;
      c10::Storage& storage = made[gradient.index];
      if (!storage) {
        const size_t nbytes = locals[gradient.index].nbytes;
        storage = c10::Storage(c10::Storage::use_byte_size_t(), nbytes, allocator()->allocate(nbytes), allocator(), /*resizable=*/true);
        storages[gradient.index] = StoragePtr::reclaim_copy(storage_of(storage.data_ptr()));
      }
      results[i] = gradient.tensor->made_over(storage);
    }
    Trace& trace = trace_of(device);
    recording.part.append_to(trace, storages);
    graphs_appended()++;
    full = trace.nodes.size() >= bounds().nodes || trace.bytes >= bounds().bytes;
  }
  if (full) flush(device, "the bound on pending work", /*whole_steps=*/true);
  return results;
}

// The graph of these gradients leads into what is inside, and to where arguments came from: to this node again, if some came
// from here. So it gets an inside of its own. Later calls of such a graph are recorded operator by operator.
variable_list GraphBackward::differentiable(const variable_list& gradients, const std::vector<bool>& wanted) {
  owner_->give_up();
  if (is_appended_ || (recording_->is_pure() && !is_modified())) {
    const Inside again = run_again();
    return again.gates->gradients(roots(again.results, gradients), defined(gradients), wanted, /*keep_graph=*/true);
  }
  is_shared_ = true;
  return run_inside(gradients, wanted);
}

bool GraphBackward::is_modified() const {
  for (size_t i = 0; i < arguments_.size(); i++)
    if (arguments_[i].defined() && version_of(arguments_[i]) != versions_[i]) return true;
  return false;
}

void GraphBackward::take_in(Inside inside) {
  inside_ = std::move(inside);
  let_go();
  is_appended_ = false;
}

// Operator by operator, for what was never recorded: gradients of gradients, other results' gradients than before.
GraphBackward::Inside GraphBackward::run_again() {
  TORCH_CHECK(recording_->is_pure(),
              "tiny: the gradients of a gradient through a compiled graph that writes its arguments or draws random "
              "numbers: call it without torch.compile");
  TORCH_CHECK(!is_modified(),
              "one of the variables needed for gradient computation has been modified by an inplace operation: a compiled "
              "graph is run again for gradients that no call of it needed so far, and an argument was written since");
  Inside again;
  pybind11::gil_scoped_acquire gil;
  at::AutoGradMode grad_mode(true);
  c10::impl::ForceDispatchKeyGuard keys(recording_->surroundings.keys.included(), recording_->surroundings.keys.excluded());
  const AutocastTo autocast(recording_->surroundings.autocast);
  pybind11::tuple arguments(arguments_.size());
  std::vector<at::Tensor> differentiable;
  for (size_t i = 0; i < arguments_.size(); i++) {
    at::Tensor t = arguments_[i];
    if (!t.defined()) {
      arguments[i] = recording_->numbers[i];
      continue;
    }
    if (recording_->is_differentiable(i)) {
      if (!t.requires_grad()) {
        t = without_history(t);
        torch::autograd::impl::set_gradient_edge(t, next_edge(differentiable.size()));
      }
      differentiable.push_back(t);
    }
    arguments[i] = pybind11::cast(t);
  }
  again.gates = std::make_shared<Gates>(std::move(differentiable));
  const pybind11::tuple results = owner_->run(arguments, *recording_, again.storages);
  again.gates->restore();
  for (size_t i = 0; i < recording_->results.size(); i++)
    if (recording_->results[i].requires_grad)
      again.results.push_back(torch::autograd::impl::gradient_edge(THPVariable_Unpack(PyTuple_GET_ITEM(results.ptr(), i))));
  return again;
}

variable_list GraphBackward::run_inside(const variable_list& gradients, const std::vector<bool>& wanted) {
  return inside_.gates->gradients(roots(inside_.results, gradients), defined(gradients), wanted,
                                  is_shared_ || torch::autograd::get_current_graph_task_keep_graph());
}

}  // namespace tiny
