#include "graphs/recording.h"

#include <ATen/autocast_mode.h>

#include "record/call.h"
#include "record/recorder.h"

namespace tiny {

TensorKind::TensorKind(const at::Tensor& t)
    : keys(t.key_set()), dtype(t.scalar_type()), sizes(t.sizes().vec()), strides(t.strides().vec()), offset(t.storage_offset()) {}

bool TensorKind::is_of(const at::Tensor& t) const {
  return t.key_set() == keys && t.scalar_type() == dtype && t.storage_offset() == offset && t.sizes() == at::IntArrayRef(sizes) &&
         t.strides() == at::IntArrayRef(strides);
}

void TensorKind::add_to(Hash& hash) const {
  hash.add(at::IntArrayRef(sizes)), hash.add(at::IntArrayRef(strides));
  hash.add(static_cast<uint64_t>(offset)), hash.add(static_cast<uint64_t>(dtype));
}

at::Tensor TensorKind::made_over(c10::Storage storage) const {
  at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                          c10::scalarTypeToTypeMeta(dtype));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return t;
}

Surroundings Surroundings::now() {
  const auto set = c10::impl::tls_local_dispatch_key_set();
  Surroundings found{{}, at::autocast::get_autocast_dtype(at::kPrivateUse1)};
  found.keys.set_included(set.included_);
  found.keys.set_excluded(set.excluded_);
  return found;
}

bool Surroundings::operator==(const Surroundings& other) const {
  return keys.included() == other.keys.included() && keys.excluded() == other.keys.excluded() && autocast == other.autocast;
}

void BackwardRecordings::add(std::shared_ptr<BackwardRecording> recording) {
  for (const auto& other : all) {
    if (!(other->hash == recording->hash) || !(other->surroundings == recording->surroundings)) continue;
    other->is_trusted = true;
    const auto& locals = recording->part.locals;
    for (const auto& local : locals) {
      if (local.given < 0 || !local.is_used) continue;
      if (saved.size() <= static_cast<size_t>(local.given)) saved.resize(local.given + 1);
      saved[local.given] = true;
    }
    if (saved.empty()) saved.resize(1);
    return;
  }
  constexpr size_t kMost = 8;
  if (all.size() < kMost) all.push_back(std::move(recording));
}

std::shared_ptr<BackwardRecording> BackwardRecordings::find(c10::ArrayRef<at::Tensor> gradients, const std::vector<bool>& wanted) const {
  const Surroundings now = Surroundings::now();
  std::shared_ptr<BackwardRecording> found;
  for (const auto& recording : all) {
    if (!recording->is_trusted || !(recording->surroundings == now)) continue;
    bool fits = true, same = true;
    for (size_t i = 0; i < wanted.size(); i++) fits = fits && (recording->wanted[i] || !wanted[i]);
    for (size_t i = 0; i < gradients.size() && fits; i++) {
      const auto& kind = recording->given[i];
      const at::Tensor& g = gradients[i];
      fits = kind.has_value() == g.defined();
      if (!fits || !kind) continue;
      fits = is_tiny(g) && g.key_set() == kind->keys && g.scalar_type() == kind->dtype && g.sizes() == at::IntArrayRef(kind->sizes);
      same = same && fits && kind->is_of(g);
    }
    if (fits && same) return recording;
    if (fits) found = recording;
  }
  return found;
}

std::shared_ptr<BackwardRecording> BackwardRecording::taken(const Recording& forward, c10::ArrayRef<StoragePtr> of_forward,
                                                            const Mark& mark, c10::ArrayRef<at::Tensor> given,
                                                            const std::vector<bool>& wanted, c10::ArrayRef<at::Tensor> results) {
  auto recording = std::make_shared<BackwardRecording>();
  recording->surroundings = Surroundings::now(), recording->wanted = wanted;
  std::vector<Storage*> storages;
  for (const auto& storage : of_forward) storages.push_back(storage.get());
  for (const at::Tensor& g : given) {
    if (g.defined() && (!is_tiny(g) || g.layout() != at::kStrided || g.device().index() != forward.device)) return nullptr;
    storages.push_back(g.defined() ? storage_of(g) : nullptr);
    recording->given.push_back(g.defined() ? std::optional<TensorKind>(g) : std::nullopt);
  }
  if (!are_apart(storages)) return nullptr;
  std::unordered_map<Storage*, int> numbers;
  auto part = TracePart::since(mark, trace_of(forward.device), storages, numbers);
  if (!part) return nullptr;
  recording->part = std::move(*part);
  for (const auto& local : recording->part.locals)
    if (local.given >= 0 && local.is_written) return nullptr;
  Hash& hash = recording->hash = recording->part.hash;
  for (const auto& kind : recording->given) {
    hash.add(static_cast<uint64_t>(kind.has_value()));
    if (kind) kind->add_to(hash);
  }
  for (size_t i = 0; i < results.size(); i++) {
    using Kind = Gradient::Kind;
    Gradient gradient{Kind::None, 0, std::nullopt};
    const at::Tensor& t = results[i];
    if (t.defined()) {
      if (!is_tiny(t) || t.layout() != at::kStrided) return nullptr;
      auto same = [&](const at::Tensor& other) { return other.is_same(t); };
      const auto came_in = std::find_if(given.begin(), given.end(), same);
      const auto earlier = std::find_if(results.begin(), results.begin() + i, same);
      const auto made = numbers.find(storage_of(t));
      if (came_in != given.end()) {
        gradient = {Kind::Given, static_cast<int>(came_in - given.begin()), std::nullopt};
      } else if (earlier != results.begin() + i) {
        gradient = {Kind::Earlier, static_cast<int>(earlier - results.begin()), std::nullopt};
      } else if (made != numbers.end() && recording->part.locals[made->second].given < 0) {
        gradient = {Kind::Made, made->second, TensorKind(t)};
        gradient.tensor->add_to(hash);
      } else {
        return nullptr;
      }
    }
    hash.add(static_cast<uint64_t>(gradient.kind)), hash.add(static_cast<uint64_t>(gradient.index));
    hash.add(static_cast<uint64_t>(wanted[i]));
    recording->gradients.push_back(std::move(gradient));
  }
  // Where it cannot be run again, one that tells the gradients of all arguments serves every pass.
  if (!forward.is_pure() && std::find(wanted.begin(), wanted.end(), false) != wanted.end()) return nullptr;
  return recording;
}

bool Recording::is_pure() const {
  if (!part.draws.empty()) return false;
  for (const auto& local : part.locals)
    if (local.given >= 0 && local.is_written) return false;
  return true;
}

size_t Recording::differentiable_results() const {
  size_t count = 0;
  for (const Result& result : results) count += result.requires_grad;
  return count;
}

bool Recording::is_held(c10::ArrayRef<StoragePtr> storages) const {
  std::vector<bool> may_be(storages.size());
  for (size_t s = 0; s < storages.size(); s++) may_be[s] = part.locals[s].given >= 0;
  for (const Result& result : results)
    if (result.kind == Result::Kind::Made) may_be[result.index] = true;
  for (size_t s = 0; s < storages.size(); s++)
    if (!may_be[s] && storages[s]->live) return true;
  return false;
}

Storage* storage_of(const at::Tensor& tensor) { return storage_of(tensor.storage().data_ptr()); }

bool is_known_as_well(const Contents& now, const Contents& then) {
  if (then.range.is_all() || now.range.empty()) return true;
  return now.dtype == then.dtype && then.range.may_be(now.range.low) && then.range.may_be(now.range.high) &&
         (now.range.next > now.range.previous || (now.range.next >= then.range.next && now.range.previous <= then.range.previous));
}

int64_t version_of(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

int64_t& graphs_appended() {
  static int64_t count = 0;
  return count;
}

}  // namespace tiny
