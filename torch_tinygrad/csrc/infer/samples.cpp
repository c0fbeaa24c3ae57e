// A call is too large to be tried as it is, but small ones of its structure are not (`shrink.h`). A size of their results stands
// for the size of an argument, or for itself; where three ways to shrink the call agree on which, the large call's results are
// known. Else how results grow with each argument is sampled. So PyTorch's Meta kernels are seldom asked, many of which are
// Python and import a second's worth of modules at their first use.
#include "infer/samples.h"

#include <c10/util/strides.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "infer/shape_rules.h"
#include "infer/shrink.h"
#include "infer/stand_ins.h"
#include "record/known.h"

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

// Gives a shape other sizes, and strides as it has them: without gaps, in the same order.
template <class Ints>
bool lay_out(Shape& shape, const Ints& sizes) {
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

bool enlarge(Shape& shape, const SmallCall& small) {
  auto sizes = shape.sizes;
  for (int64_t& size : sizes) {
    const auto original = small.original(size);
    if (!original) return false;
    size = *original;
  }
  return lay_out(shape, sizes);
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

// By a rule for sizes, if it is right about the small call.
std::optional<Inferred> by_rule(const Call& call, c10::ArrayRef<c10::IValue> args, const SmallCall& small, const Inferred& sample) {
  const auto sizes = result_sizes(call.info, call.tensors, args), small_sizes = result_sizes(call.info, small.tensors(), small.args);
  if (call.info.writes || !sizes || !small_sizes) return std::nullopt;
  const auto said = resized(sample, *small_sizes);
  return said && is_same(*said, sample) ? resized(sample, *sizes) : std::nullopt;
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

// Results whose sizes grow with those of arguments, each in steps of its own: pools, paddings, halves. The sizes of `base` keep
// what the call's leave when divided by `kDivisors`; one argument's size more by that is a sample of how results grow.
struct Growth {
  Inferred base;
  std::vector<Inferred> more;  // for each size in `SmallCall::large`

  // For sizes that are so many times `kDivisors` larger than those of `base`.
  std::optional<Inferred> at(c10::ArrayRef<int64_t> times) const {
    Inferred inferred = base;
    for (size_t i = 0; i < base.returns.size(); i++) {
      for (size_t j = 0; j < base.returns[i].tensors.size(); j++) {
        Result& result = inferred.returns[i].tensors[j];
        if (result.kind != Result::Kind::Fresh) continue;
        auto sizes = result.shape.sizes;
        for (size_t d = 0; d < sizes.size(); d++)
          for (size_t k = 0; k < more.size(); k++)
            sizes[d] += times[k] * (more[k].returns[i].tensors[j].shape.sizes[d] - result.shape.sizes[d]);
        if (!lay_out(result.shape, sizes)) return std::nullopt;
      }
    }
    return inferred;
  }
};

bool is_alike(const Inferred& a, const Inferred& b) {
  if (!a.resized.empty() || !b.resized.empty() || a.returns.size() != b.returns.size()) return false;
  for (size_t i = 0; i < a.returns.size(); i++) {
    const auto &x = a.returns[i], &y = b.returns[i];
    if (x.is_value || y.is_value || x.is_list != y.is_list || x.tensors.size() != y.tensors.size()) return false;
    for (size_t j = 0; j < x.tensors.size(); j++) {
      const Result &v = x.tensors[j], &w = y.tensors[j];
      if (v.kind == Result::Kind::View || v.kind != w.kind || v.tensor != w.tensor) return false;
      if (v.kind == Result::Kind::Fresh && (v.shape.dtype != w.shape.dtype || v.shape.sizes.size() != w.shape.sizes.size())) return false;
    }
  }
  return true;
}

// Confirmed where all sizes are larger, by twice as much: what grows otherwise is not described by this.
std::shared_ptr<const Growth> growth(const Call& call, c10::ArrayRef<c10::IValue> args, const SmallCall& base) {
  auto sample = [&](const std::vector<int64_t>& more) -> std::optional<Inferred> {
    const std::optional<SmallCall> small = shrink(call, args, 1, more);
    return small ? run(call, *small) : std::nullopt;
  };
  try {
    const size_t count = base.large.size();
    std::optional<Inferred> made = run(call, base);
    if (!made || !is_alike(*made, *made)) return nullptr;
    Growth growth{*std::move(made), {}};
    for (size_t i = 0; i < count; i++) {
      std::vector<int64_t> more(count, 0);
      more[i] = kDivisors;
      made = sample(more);
      if (!made || !is_alike(growth.base, *made)) return nullptr;
      growth.more.push_back(*std::move(made));
    }
    const auto said = growth.at(std::vector<int64_t>(count, 2));
    made = sample(std::vector<int64_t>(count, 2 * kDivisors));
    if (!said || !made || !is_same(*said, *made)) return nullptr;
    return std::make_shared<const Growth>(std::move(growth));
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Kernels choose how convolutions lie in memory by their size.
bool depends_on_size(const OpInfo& info) { return info.name.rfind("aten::convolution", 0) == 0; }

// For calls whose structure the CPU's kernel takes.
std::optional<Inferred> infer_from_growth(const Call& call, c10::ArrayRef<c10::IValue> args) {
  static auto& known = *new Known<Growth>;
  if (depends_on_size(call.info) || call.info.writes) return std::nullopt;
  const std::optional<SmallCall> base = shrink(call, args, 1);
  if (!base) return std::nullopt;
  auto found = known.find(base->structure);
  if (!found) {
    found = growth(call, args, *base);
    known.add(base->structure, *found);
  }
  if (!*found) return std::nullopt;
  std::vector<int64_t> times;
  for (size_t i = 0; i < base->large.size(); i++) times.push_back((base->large[i] - base->small[i]) / kDivisors);
  return (*found)->at(times);
}

void confirm(const Call& call, c10::ArrayRef<c10::IValue> args, const std::exception_ptr& refusal) {
  if (bytes_of(call) > kMaxBytesToConfirm) std::rethrow_exception(refusal);
  infer_from_cpu(call, args);
}

}  // namespace

// A refusal counts if it says the same whatever the sizes are: others come from the shrinking, or Meta kernels find them too.
std::optional<Inferred> infer_from_samples(const Call& call, c10::ArrayRef<c10::IValue> args) {
  static auto& samples = *new Known<Inferred>;
  std::string refused;
  for (const int variant : {0, 1}) {
    const std::optional<SmallCall> small = shrink(call, args, variant);
    if (!small) return std::nullopt;
    if (const auto known = samples.find(small->structure)) return *known ? enlarged(**known, call, *small) : infer_from_growth(call, args);
    std::exception_ptr refusal;
    std::string message;
    try {
      const std::optional<Inferred> sample = run(call, *small);
      if (auto said = sample ? by_rule(call, args, *small, *sample) : std::nullopt) return said;
      auto inferred = sample && variant == 0 && !depends_on_size(call.info) ? enlarged(*sample, call, *small) : std::nullopt;
      if (inferred && !all_say(*inferred, call, args)) inferred = std::nullopt;
      samples.add(small->structure, inferred ? std::make_shared<const Inferred>(*sample) : nullptr);
      return inferred ? inferred : infer_from_growth(call, args);
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
