// What is known of an operator's numbers: the ranges of its results, which arguments select places in others, and which
// become elements.
#pragma once

#include <ATen/core/function_schema.h>

#include <cstdint>
#include <vector>

#include "range.h"

namespace tiny {

// How the range of a result follows from the arguments.
class GivenArguments;
struct RangeRule {
  using Function = Range (*)(const GivenArguments&);
  Function function;
  std::vector<int> arguments;  // their positions, -1 for those the overload has not
};

// An argument whose values select places in another.
struct IndexRule {
  enum class Places : uint8_t {
    Along,    // those along a dimension, which is an argument too
    First,    // those along the first dimension
    Classes,  // those along the second dimension, or the only one
    Last,     // those along the last dimension
    All,      // all elements
    Volume,   // those of a volume, whose sizes are the argument
    Each      // a list: the n-th index selects among those along the n-th dimension
  };
  Places places;
  int index, of, dim, ignored;  // positions of arguments, -1 where there is none; `ignored` is a value that selects nothing
  int64_t least;                // what may be given at least, where negative values do not count from the end
  bool wraps;                   // they do
};

// A look at the arguments' values before the call is recorded: raises what the CPU's kernel does when it meets them.
struct Call;
using ValueCheck = void (*)(const Call&, c10::ArrayRef<c10::IValue>);

// A rule for each result, if there are any.
std::vector<RangeRule> range_rules(const c10::FunctionSchema& schema);
std::vector<IndexRule> index_rules(const c10::FunctionSchema& schema);
std::vector<int> converted_numbers(const c10::FunctionSchema& schema);
ValueCheck value_check(const c10::FunctionSchema& schema);

// Rules are for all overloads of an operator, and for its form that writes in place.
inline std::string_view rule_name(const c10::FunctionSchema& schema) {
  std::string_view name = schema.name();
  if (name.substr(0, 6) != "aten::") return {};
  name.remove_prefix(6);
  if (!name.empty() && name.back() == '_') name.remove_suffix(1);
  return name;
}

}  // namespace tiny
