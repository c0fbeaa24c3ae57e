// How ranges of results follow from arguments. What has no rule may hold any value; what could overflow may as well.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include "infer/range.h"

namespace tiny {

// How the range of a result follows from the arguments.
class GivenArguments;
struct RangeRule {
  using Function = Range (*)(const GivenArguments&);
  Function function;
  std::vector<int> arguments;  // their positions, -1 for those the overload has not
};

// A rule for each result, if there are any.
std::vector<RangeRule> range_rules(const c10::FunctionSchema& schema);

// Of the n-th result of a call.
Range result_range(const std::vector<RangeRule>& rules, c10::ArrayRef<c10::IValue> args, size_t result, at::ScalarType dtype,
                   int64_t numel);

}  // namespace tiny
