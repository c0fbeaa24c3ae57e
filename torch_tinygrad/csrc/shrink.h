// Small calls with the structure of large ones, on which the CPU's kernel says what it refuses without computing much.
#pragma once

#include <optional>
#include <vector>

#include "infer.h"

namespace tiny {

// Stand-ins on the CPU for a call's tensors.
struct SmallCall {
  Hash structure;               // the same for calls that shrink to the same one
  std::vector<Shape> shapes;    // offsets count from where `storage` begins
  std::vector<size_t> storage;  // of each tensor; tensors that share one alias
  std::vector<size_t> nbytes;   // of each storage
  std::vector<int> same;        // the first tensor that each one is

  std::vector<at::Tensor> tensors() const;
};

// Two ways to shrink (`variant` 0 and 1): sizes differ between them, so that a message that names sizes differs too, and
// the second keeps what sizes leave when divided by 12. None where numbers among the arguments are too large for it.
std::optional<SmallCall> shrink(const Call& call, c10::ArrayRef<c10::IValue> args, int variant);

}  // namespace tiny
