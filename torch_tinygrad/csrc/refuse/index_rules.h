// Which arguments are indices, and of what.
#pragma once

#include <ATen/core/function_schema.h>

#include <cstdint>
#include <vector>

namespace tiny {

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

std::vector<IndexRule> index_rules(const c10::FunctionSchema& schema);

}  // namespace tiny
