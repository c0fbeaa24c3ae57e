#include "refuse/indices.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>

#include "flush/aside.h"
#include "infer/infer.h"
#include "infer/ranges.h"
#include "python/python.h"
#include "record/copy.h"
#include "record/recorder.h"
#include "refuse/index_rules.h"

namespace tiny {
namespace {

using Places = IndexRule::Places;

constexpr const char* kReason = "the values of an index";

int64_t count_places(const IndexRule& rule, c10::ArrayRef<c10::IValue> args) {
  if (rule.places == Places::Volume) return c10::multiply_integers(args[rule.of].toIntVector());
  const at::Tensor& of = args[rule.of].toTensor();
  if (rule.places == Places::All) return of.numel();
  if (of.dim() == 0) return 1;
  switch (rule.places) {
    case Places::Along:
      return of.size(args[rule.dim].toInt());
    case Places::First:
      return of.size(0);
    case Places::Classes:
      return of.size(std::min<int64_t>(1, of.dim() - 1));
    default:
      return of.size(-1);
  }
}

// All of a storage, as values of a dtype.
at::Tensor whole(const at::Tensor& tensor) {
  return tensor.as_strided({static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize())}, {1}, 0);
}

// The range of a tensor's values, from themselves. `bytes` are its storage's, if they were computed beside the trace.
Range found_range(const at::Tensor& tensor, const Buffer* bytes) {
  constexpr int64_t kMaxElements = 1 << 20;
  if (bytes != nullptr) {
    void* first = static_cast<char*>(bytes->host) + tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
    const at::Tensor values = at::from_blob(first, tensor.sizes(), tensor.strides(), at::dtype(tensor.scalar_type())).contiguous();
    return range_at(values.const_data_ptr(), values.numel(), values.scalar_type());
  }
  if (!shares_host_memory() && tensor.numel() > kMaxElements) {
    const auto [least, most] = at::aminmax(tensor);
    return Range::of(least.item().toLong(), most.item().toLong());
  }
  const at::Tensor values = on_host(tensor, kReason).contiguous();
  return range_at(values.const_data_ptr(), values.numel(), values.scalar_type());
}

class Check {
 public:
  Check(const Call& call, c10::ArrayRef<c10::IValue> args) : call_(call), args_(args) {}

  void run() {
    for (const IndexRule& rule : call_.info.indices) {
      if (args_[rule.index].isNone()) continue;
      if (rule.places == Places::Each) {
        each(rule);
      } else {
        const std::optional<int64_t> ignored = rule.ignored < 0 ? std::nullopt : std::optional<int64_t>(args_[rule.ignored].toInt());
        one(args_[rule.index].toTensor(), rule, count_places(rule, args_), ignored);
      }
    }
    if (wrong_) ask_cpu(call_, args_, indices_);
  }

 private:
  void each(const IndexRule& rule) {
    const at::Tensor& of = args_[rule.of].toTensor();
    int64_t dim = 0;
    for (const auto& value : args_[rule.index].toListRef()) {
      const bool given = value.isTensor() && value.toTensor().defined();
      const bool is_mask = given && (value.toTensor().scalar_type() == at::kBool || value.toTensor().scalar_type() == at::kByte);
      if (given && !is_mask && !call_.is_place(dim)) one(value.toTensor(), rule, of.size(dim), std::nullopt);
      dim += is_mask ? value.toTensor().dim() : 1;
    }
  }

  void one(const at::Tensor& index, const IndexRule& rule, int64_t count, std::optional<int64_t> ignored) {
    if (!is_tiny(index) || index.numel() == 0 || !is_integral(index.scalar_type())) return;
    indices_.push_back(index);
    wrong_ |= !values_within(index, rule.wraps ? -count : rule.least, count - 1, ignored);
  }

  const Call& call_;
  c10::ArrayRef<c10::IValue> args_;
  c10::SmallVector<at::Tensor, 2> indices_;
  bool wrong_ = false;
};

}  // namespace

bool values_within(const at::Tensor& tensor, int64_t least, int64_t most, std::optional<int64_t> exempt) {
  if (range_of(tensor).within(least, most, exempt)) return true;
  DeviceLock lock;
  // Other parts of the storage will be asked about too: what all of it holds is found once.
  Storage& storage = *storage_of(tensor.storage().data_ptr());
  const std::shared_ptr<Buffer> bytes = computed_aside(tensor, kReason);
  if (!storage.contents.exact || storage.shared != nullptr) {
    const Range range = found_range(whole(tensor), bytes.get());
    storage.contents = {range, tensor.scalar_type(), true};
    if (range.within(least, most, exempt)) return true;
  }
  return found_range(tensor, bytes.get()).within(least, most, exempt);
}

void check_indices(const Call& call, c10::ArrayRef<c10::IValue> args) {
  if (!call.info.indices.empty()) Check(call, args).run();
}

}  // namespace tiny
