// Shrinks calls: equal sizes stay equal, different ones different and in order; strides keep their order, gaps and
// overlaps; tensors that alias keep how they do. Sizes up to the largest number among the arguments stay as they are: kernel
// sizes, counts and places then mean the same.
#include "infer/shrink.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <unordered_map>

namespace tiny {
namespace {

constexpr int64_t kMinKept = 4;  // sizes up to this are kept in any case
// Of all stand-ins: those that show how results grow are larger, and asked for last.
constexpr int64_t kMaxBytes = 1 << 20, kMaxBytesOfThird = 4 << 20, kMaxBytesOfGrown = 16 << 20;
constexpr int64_t kGap = 4;                   // between sizes of the third
constexpr int64_t kFarther = 3;               // how many times a number the third's sizes are: quotients by it change
constexpr int64_t kApart = int64_t{1} << 12;  // bytes between tensors that share a storage without overlapping

// Numbers by these names are sizes of arguments, and shrink with them.
bool is_size(const std::string& name) {
  static const std::set<std::string> names = {"normalized_shape", "num_weights", "input_size", "input_sizes", "self_sizes"};
  return names.count(name) > 0;
}

bool is_size_of(const Call& call, int64_t value) {
  if (value <= kMinKept) return value >= 0;
  return std::any_of(call.tensors.begin(), call.tensors.end(),
                     [&](const at::Tensor& t) { return std::find(t.sizes().begin(), t.sizes().end(), value) != t.sizes().end(); });
}

// Whether this argument is sizes of tensors, all of which are there.
bool holds_sizes(const Call& call, const std::string& name, const c10::IValue& value) {
  if (!is_size(name)) return false;
  if (value.isInt()) return is_size_of(call, value.toInt());
  if (!value.isIntList()) return false;
  const auto list = value.toIntVector();
  return std::all_of(list.begin(), list.end(), [&](int64_t n) { return is_size_of(call, n); });
}

int64_t largest_number(const Call& call, c10::ArrayRef<c10::IValue> args) {
  int64_t most = kMinKept;
  auto look = [&](int64_t value) { most = std::max(most, value < 0 ? -std::max(value, -Range::kMost) : value); };
  for (size_t i = 0; i < args.size(); i++) {
    const std::string& name = call.info.op.schema().arguments()[i].name();
    if (call.info.args[i].kind != OpInfo::Kind::Value || name == "dtype" || holds_sizes(call, name, args[i])) continue;
    if (args[i].isInt()) look(args[i].toInt());
    if (args[i].isIntList())
      for (int64_t value : args[i].toIntList()) look(value);
  }
  return most;
}

// Fills in what stands for the sizes of the arguments.
void shrink_sizes(const Call& call, int variant, c10::ArrayRef<int64_t> more, SmallCall& small) {
  for (const auto& t : call.tensors)
    for (int64_t size : t.sizes())
      if (size > small.kept) small.large.push_back(size);
  std::sort(small.large.begin(), small.large.end());
  small.large.erase(std::unique(small.large.begin(), small.large.end()), small.large.end());
  // The next is left out: many operators have a size that is another's and one.
  int64_t last = variant == 2 ? kFarther * small.kept : small.kept + 1;
  for (int64_t size : small.large) {
    last++;
    if (variant == 1) last += ((size - last) % kDivisors + kDivisors) % kDivisors;
    if (variant == 2) last += kGap + static_cast<int64_t>(small.small.size());
    small.small.push_back(last);
  }
  for (size_t i = 0; i < more.size(); i++) small.small[i] += more[i];
}

int64_t shrunk(const SmallCall& small, int64_t size) {
  if (size <= small.kept) return size;
  return small.small[std::lower_bound(small.large.begin(), small.large.end(), size) - small.large.begin()];
}

c10::IValue shrunk(const SmallCall& small, const c10::IValue& value) {
  if (value.isInt()) return shrunk(small, value.toInt());
  std::vector<int64_t> list = value.toIntVector();
  for (int64_t& n : list) n = shrunk(small, n);
  return list;
}

// Strides over smaller sizes, from the innermost dimension out: dense ones stay dense, gaps gaps, overlaps overlaps.
void shrink_strides(const at::Tensor& t, Shape& shape) {
  c10::SmallVector<size_t, 5> order(t.dim());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return t.stride(a) != t.stride(b) ? t.stride(a) < t.stride(b) : a > b; });
  int64_t extent = 1, small = 1;
  for (size_t d : order) {
    const int64_t stride = t.stride(d);
    shape.strides[d] = stride == 0        ? 0
                       : stride == extent ? small
                       : stride > extent  ? small + 1
                                          : std::min(stride, std::max<int64_t>(small - 1, 1));
    if (t.size(d) > 1) {
      extent = std::max(extent, stride * t.size(d));
      small = std::max(small, shape.strides[d] * shape.sizes[d]);
    }
  }
}

int64_t elements_spanned(const Shape& shape) {
  int64_t last = 0;
  for (size_t d = 0; d < shape.sizes.size(); d++) {
    if (shape.sizes[d] == 0) return 0;
    last += (shape.sizes[d] - 1) * shape.strides[d];
  }
  return last + 1;
}

// Where a tensor begins in the small storage, in bytes, seen from one that was placed there before.
int64_t place_beside(const at::Tensor& t, const at::Tensor& other, int64_t at, size_t end) {
  if (t.storage_offset() * t.itemsize() == other.storage_offset() * other.itemsize()) return at;
  const auto first = [](const at::Tensor& x) { return x.storage_offset() * static_cast<int64_t>(x.itemsize()); };
  const auto past = [&](const at::Tensor& x) {
    int64_t last = 0;
    for (int64_t d = 0; d < x.dim(); d++) last += x.size(d) > 0 ? (x.size(d) - 1) * x.stride(d) : 0;
    return first(x) + (last + 1) * static_cast<int64_t>(x.itemsize());
  };
  const bool overlap = first(t) < past(other) && first(other) < past(t);
  const int64_t size = static_cast<int64_t>(std::max(t.itemsize(), other.itemsize()));
  if (overlap) return first(t) > first(other) ? at + size : at - size;
  const int64_t beyond = static_cast<int64_t>(end) + kApart;
  return (beyond + 15) / 16 * 16;
}

}  // namespace

std::vector<at::Tensor> SmallCall::tensors() const {
  std::vector<at::Tensor> bases, result;
  for (size_t n : nbytes) bases.push_back(at::empty({static_cast<int64_t>(n)}, at::TensorOptions().dtype(at::kByte)));
  for (size_t i = 0; i < shapes.size(); i++) {
    if (same[i] < static_cast<int>(i)) {
      result.push_back(result[same[i]]);
      continue;
    }
    at::Tensor t = at::empty({0}, at::TensorOptions().dtype(shapes[i].dtype));
    t.unsafeGetTensorImpl()->set_storage_keep_dtype(bases[storage[i]].storage());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(shapes[i].sizes, shapes[i].strides, shapes[i].offset);
    result.push_back(std::move(t));
  }
  return result;
}

std::optional<int64_t> SmallCall::original(int64_t size) const {
  if (size <= kept) return size;
  const auto found = std::lower_bound(small.begin(), small.end(), size);
  if (found == small.end() || *found != size) return std::nullopt;
  return large[found - small.begin()];
}

std::optional<SmallCall> shrink(const Call& call, c10::ArrayRef<c10::IValue> args, int variant, c10::ArrayRef<int64_t> more) {
  if (call.info.absolute) return std::nullopt;
  SmallCall small;
  small.kept = largest_number(call, args);
  shrink_sizes(call, variant, more, small);
  small.structure = call.info.hash;
  small.structure.add(uint64_t{has_unfit_number(call, args)});
  std::unordered_map<const void*, size_t> storages;  // of the real tensors → the first tensor there
  const int64_t most = !more.empty() ? kMaxBytesOfGrown : variant == 2 ? kMaxBytesOfThird : kMaxBytes;
  int64_t total = 0;
  for (size_t i = 0; i < call.tensors.size(); i++) {
    const at::Tensor& t = call.tensors[i];
    Shape shape{{}, {t.strides().begin(), t.strides().end()}, t.scalar_type(), 0};
    for (int64_t size : t.sizes()) shape.sizes.push_back(shrunk(small, size));
    shrink_strides(t, shape);
    const int64_t itemsize = static_cast<int64_t>(t.itemsize());
    int64_t numel = 1;
    for (int64_t size : shape.sizes)
      if (__builtin_mul_overflow(numel, size, &numel)) return std::nullopt;
    const int64_t span = elements_spanned(shape) * itemsize;
    total += std::max(span, numel * itemsize);
    if (total < 0 || total > most) return std::nullopt;
    int64_t at = kApart;
    size_t number = small.nbytes.size();
    int same = static_cast<int>(i);
    const void* key = t.storage().unsafeGetStorageImpl();
    const auto found = call.aliased ? storages.find(key) : storages.end();
    if (found != storages.end()) {
      const size_t first = found->second;
      number = small.storage[first];
      at = place_beside(t, call.tensors[first], small.shapes[first].offset * c10::elementSize(small.shapes[first].dtype),
                        small.nbytes[number]);
      for (size_t j = 0; j < i && same == static_cast<int>(i); j++)
        if (call.tensors[j].is_same(t)) same = static_cast<int>(j);
    } else {
      storages.emplace(key, i);
      small.nbytes.push_back(0);
    }
    if (!call.aliased) at = 0;
    shape.offset = at / itemsize;
    small.nbytes[number] = std::max(small.nbytes[number], static_cast<size_t>(shape.offset * itemsize + span + kApart * call.aliased));
    small.structure.add((static_cast<uint64_t>(shape.dtype) << 32) | (static_cast<uint64_t>(number) << 16) | static_cast<uint64_t>(same));
    small.structure.add(at::IntArrayRef(shape.sizes));
    small.structure.add(at::IntArrayRef(shape.strides));
    small.structure.add(static_cast<uint64_t>(shape.offset));
    small.shapes.push_back(std::move(shape));
    small.storage.push_back(number);
    small.same.push_back(same);
  }
  for (size_t i = 0; i < args.size(); i++) {
    using Kind = OpInfo::Kind;
    const Kind kind = call.info.args[i].kind;
    small.args.push_back(holds_sizes(call, call.info.op.schema().arguments()[i].name(), args[i]) ? shrunk(small, args[i]) : args[i]);
    if (kind <= Kind::OptionalTensorList) {
      const bool absent = args[i].isNone();
      const bool is_cpu = args[i].isTensor() && args[i].toTensor().defined() && !is_tiny(args[i].toTensor());
      small.structure.add(uint64_t{absent ? 1u : is_cpu ? 2u + static_cast<unsigned>(args[i].toTensor().scalar_type()) : 0u});
      if (args[i].isList()) small.structure.add(args[i].toListRef().size());
    } else if (kind == Kind::ScalarList || ((kind == Kind::Scalar || kind == Kind::Float) && call.info.args[i].lift && !call.info.random)) {
      small.structure.add(uint64_t{args[i].isDouble() ? 1u : args[i].isBool() ? 2u : args[i].isComplexDouble() ? 3u : 4u});
    } else if (kind != Kind::Generator && kind != Kind::Device) {
      hash_value(small.structure, small.args[i]);
    }
  }
  return small;
}

}  // namespace tiny
