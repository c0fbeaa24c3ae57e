// Which arguments are indices, and the check of their values.
#include "indices.h"

#include <ATen/ops/aminmax.h>
#include <c10/util/accumulate.h>

#include <string_view>
#include <unordered_map>

#include "infer.h"
#include "python.h"
#include "ranges.h"
#include "recorder.h"

namespace tiny {
namespace {

using Places = IndexRule::Places;

struct Row {
  Places places;
  const char *index, *of;
  const char* dim = "";
  const char* ignored = "";
  int64_t least = 0;
  bool wraps = false;
};

Row along(const char* dim, bool wraps = false) { return {Places::Along, "index", "self", dim, "", 0, wraps}; }

// Operator, without its overload and without the mark of writing in place → its index.
const std::unordered_map<std::string_view, Row>& table() {
  static const auto* rows = new std::unordered_map<std::string_view, Row>{
      {"index", {Places::Each, "indices", "self", "", "", 0, true}},
      {"index_put", {Places::Each, "indices", "self", "", "", 0, true}},
      {"_index_put_impl", {Places::Each, "indices", "self", "", "", 0, true}},
      {"take", {Places::All, "index", "self", "", "", 0, true}},
      {"put", {Places::All, "index", "self", "", "", 0, true}},
      {"gather", along("dim")},
      {"scatter", along("dim")},
      {"scatter_add", along("dim")},
      {"scatter_reduce", along("dim")},
      {"index_select", along("dim")},
      {"index_add", along("dim")},
      {"index_copy", along("dim")},
      {"index_reduce", along("dim")},
      {"index_fill", along("dim", true)},
      {"embedding", {Places::First, "indices", "weight"}},
      {"embedding_renorm", {Places::First, "indices", "self"}},
      {"_embedding_bag", {Places::First, "indices", "weight"}},
      {"_embedding_bag_forward_only", {Places::First, "indices", "weight"}},
      {"nll_loss_forward", {Places::Classes, "target", "self", "", "ignore_index"}},
      {"nll_loss2d_forward", {Places::Classes, "target", "self", "", "ignore_index"}},
      {"multi_margin_loss", {Places::Last, "target", "self"}},
      {"multilabel_margin_loss_forward", {Places::Last, "target", "self", "", "", -1}},
      {"searchsorted", {Places::Last, "sorter", "sorted_sequence"}},
      {"max_unpool2d", {Places::Volume, "indices", "output_size"}},
      {"max_unpool3d", {Places::Volume, "indices", "output_size"}},
  };
  return *rows;
}

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

// The range of a tensor's values, from themselves.
Range found_range(const at::Tensor& tensor) {
  constexpr int64_t kMaxElements = 1 << 20;
  if (!is_host(tensor.device().index()) && tensor.numel() > kMaxElements) {
    const auto [least, most] = at::aminmax(tensor);
    return Range::of(least.item().toLong(), most.item().toLong());
  }
  const at::Tensor values = on_host(tensor, "the values of an index").contiguous();
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

std::vector<IndexRule> index_rules(const c10::FunctionSchema& schema) {
  const auto found = table().find(rule_name(schema));
  if (found == table().end()) return {};
  const Row& row = found->second;
  auto position = [&](const char* argument) { return schema.argumentIndexWithName(argument).value_or(-1); };
  const IndexRule rule{row.places, position(row.index), position(row.of), position(row.dim), position(row.ignored), row.least, row.wraps};
  if (rule.index < 0 || rule.of < 0 || (rule.places == Places::Along && rule.dim < 0)) return {};
  return {rule};
}

bool values_within(const at::Tensor& tensor, int64_t least, int64_t most, std::optional<int64_t> exempt) {
  if (range_of(tensor).within(least, most, exempt)) return true;
  DeviceLock lock;
  // Other parts of the storage will be asked about too: what all of it holds is found once.
  Storage& storage = *storage_of(tensor.storage().data_ptr());
  if (!storage.contents.exact || storage.shared != nullptr) {
    const Range range = found_range(whole(tensor));
    storage.contents = {range, tensor.scalar_type(), true};
    if (range.within(least, most, exempt)) return true;
  }
  return found_range(tensor).within(least, most, exempt);
}

void check_indices(const Call& call, c10::ArrayRef<c10::IValue> args) {
  if (!call.info.indices.empty()) Check(call, args).run();
}

}  // namespace tiny
