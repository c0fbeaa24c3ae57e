#include "refuse/index_rules.h"

#include <string_view>
#include <unordered_map>

#include "record/rule_name.h"

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

}  // namespace tiny
