// A call is too large to be tried as it is, but small ones of its structure are not (`shrink.h`). A size of their results stands
// for the size of an argument, or for itself; where three ways to shrink the call agree on which, the large call's results are
// known without PyTorch's Meta kernels, many of which are Python and import a second's worth of modules at their first use.
#include "samples.h"

#include <c10/util/strides.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include "shrink.h"
#include "stand_ins.h"

namespace tiny {
namespace {

using Result = Inferred::Result;

// A small call's refusal is confirmed on the call itself up to so many bytes.
constexpr size_t kMaxBytesToConfirm = size_t{64} << 20;

// Strides without gaps, in the order in which `like` has them over `sizes`.
template <class Ints>
Ints dense_strides(const Ints& sizes, const Ints& like) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return like[a] > like[b]; });
  Ints strides = like;
  int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[*d] = stride;
    stride *= std::max<int64_t>(sizes[*d], 1);
  }
  return strides;
}

bool enlarge(Shape& shape, const SmallCall& small) {
  auto sizes = shape.sizes;
  for (int64_t& size : sizes) {
    const auto original = small.original(size);
    if (!original) return false;
    size = *original;
  }
  const auto dense = c10::contiguous_strides(shape.sizes);
  if (std::equal(dense.begin(), dense.end(), shape.strides.begin())) {
    const auto strides = c10::contiguous_strides(sizes);
    shape.strides.assign(strides.begin(), strides.end());
  } else if (dense_strides(shape.sizes, shape.strides) == shape.strides) {
    shape.strides = dense_strides(sizes, shape.strides);
  } else {
    return false;
  }
  shape.sizes = sizes;
  return true;
}

// What the large call makes, by what a small one made.
std::optional<Inferred> enlarged(Inferred inferred, const Call& call, const SmallCall& small) {
  for (auto& [tensor, shape] : inferred.resized) {
    if (!enlarge(shape, small)) return std::nullopt;
    shape.offset = call.tensors[tensor].storage_offset();
  }
  for (auto& ret : inferred.returns) {
    if (ret.is_value) return std::nullopt;
    for (Result& result : ret.tensors)
      if (result.kind == Result::Kind::View || (result.kind == Result::Kind::Fresh && !enlarge(result.shape, small))) return std::nullopt;
  }
  return inferred;
}

bool is_same(const Shape& a, const Shape& b) { return a.sizes == b.sizes && a.strides == b.strides && a.dtype == b.dtype; }

bool is_same(const Result& a, const Result& b) {
  if (a.kind != b.kind || a.tensor != b.tensor) return false;
  return a.kind != Result::Kind::Fresh || is_same(a.shape, b.shape);
}

bool is_same(const Inferred& a, const Inferred& b) {
  auto same_return = [](const Inferred::Return& x, const Inferred::Return& y) {
    auto same_result = [](const Result& v, const Result& w) { return is_same(v, w); };
    return x.is_list == y.is_list && std::equal(x.tensors.begin(), x.tensors.end(), y.tensors.begin(), y.tensors.end(), same_result);
  };
  auto same_resize = [](const auto& x, const auto& y) { return x.first == y.first && is_same(x.second, y.second); };
  return std::equal(a.returns.begin(), a.returns.end(), b.returns.begin(), b.returns.end(), same_return) &&
         std::equal(a.resized.begin(), a.resized.end(), b.resized.begin(), b.resized.end(), same_resize);
}

std::optional<Inferred> run(const Call& call, const SmallCall& small) {
  return run_on_stand_ins(call, small.args, [&] { return small.tensors(); });
}

// Whether all ways to shrink the call say this of it.
bool all_say(const Inferred& inferred, const Call& call, c10::ArrayRef<c10::IValue> args) {
  for (int variant = 1; variant < kVariants; variant++) {
    const std::optional<SmallCall> small = shrink(call, args, variant);
    if (!small) return false;
    try {
      const std::optional<Inferred> sample = run(call, *small);
      const auto said = sample ? enlarged(*sample, call, *small) : std::nullopt;
      if (!said || !is_same(*said, inferred)) return false;
    } catch (const std::exception&) {
      return false;
    }
  }
  return true;
}

// Kernels choose how convolutions lie in memory by their size.
bool depends_on_size(const OpInfo& info) { return info.name.rfind("aten::convolution", 0) == 0; }

// Structures that the CPU's kernel takes, with what it makes of the first variant where that says enough.
class Samples {
 public:
  using Sample = std::shared_ptr<const Inferred>;
  std::optional<Sample> find(const Hash& structure) {
    std::lock_guard<std::mutex> guard(mutex_);
    const auto it = known_.find(structure);
    if (it == known_.end()) return std::nullopt;
    return it->second;
  }
  void add(const Hash& structure, Sample sample) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (known_.size() > 100000) known_.clear();
    known_.emplace(structure, std::move(sample));
  }

 private:
  std::mutex mutex_;
  std::unordered_map<Hash, Sample, HashHash> known_;
};

void confirm(const Call& call, c10::ArrayRef<c10::IValue> args, const std::exception_ptr& refusal) {
  size_t bytes = 0;
  for (const auto& t : call.tensors) bytes += call.aliased ? t.storage().nbytes() : t.nbytes();
  if (bytes > kMaxBytesToConfirm) std::rethrow_exception(refusal);
  run_on_stand_ins(call, args, [&] { return stand_ins(call, c10::Device(c10::kCPU)); });
}

}  // namespace

// A refusal counts if it says the same whatever the sizes are: others come from the shrinking, or Meta kernels find them too.
std::optional<Inferred> infer_from_samples(const Call& call, c10::ArrayRef<c10::IValue> args) {
  static auto& samples = *new Samples;
  std::string refused;
  for (const int variant : {0, 1}) {
    const std::optional<SmallCall> small = shrink(call, args, variant);
    if (!small) return std::nullopt;
    if (const auto known = samples.find(small->structure)) return *known ? enlarged(**known, call, *small) : std::nullopt;
    std::exception_ptr refusal;
    std::string message;
    try {
      const std::optional<Inferred> sample = run(call, *small);
      auto inferred = sample && variant == 0 && !depends_on_size(call.info) ? enlarged(*sample, call, *small) : std::nullopt;
      if (inferred && !all_say(*inferred, call, args)) inferred = std::nullopt;
      samples.add(small->structure, inferred ? std::make_shared<const Inferred>(*sample) : nullptr);
      return inferred;
    } catch (const c10::Error& error) {
      message = error.what_without_backtrace(), refusal = std::current_exception();
    } catch (const std::exception& error) {
      message = error.what(), refusal = std::current_exception();
    }
    if (variant == 0) {
      refused = message;
    } else if (message == refused) {
      confirm(call, args, refusal);
    }
  }
  return std::nullopt;
}

}  // namespace tiny
