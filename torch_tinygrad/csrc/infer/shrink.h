// Small calls with the structure of large ones, on which the CPU's kernel says what it refuses without computing much.
#pragma once

#include <optional>
#include <vector>

#include "infer/infer.h"

namespace tiny {

// Stand-ins on the CPU for a call's tensors.
struct SmallCall {
  Hash structure;               // the same for calls that shrink to the same one
  std::vector<Shape> shapes;    // offsets count from where `storage` begins
  std::vector<size_t> storage;  // of each tensor; tensors that share one alias
  std::vector<size_t> nbytes;   // of each storage
  std::vector<int> same;        // the first tensor that each one is
  std::vector<c10::IValue> args;
  int64_t kept;                       // sizes up to this stayed as they are
  std::vector<int64_t> large, small;  // the others, in order, and what stands for them

  std::vector<at::Tensor> tensors() const;
  // The size that this one of a result stands for.
  std::optional<int64_t> original(int64_t size) const;
};

// Ways to shrink (`variant` 0, 1 and 2): sizes differ between them, so that a message that names sizes differs too. The second
// keeps what sizes leave when divided by `kDivisors`, the third's are several times as large. `more` is added to the sizes
// that stand for others. None where numbers among the arguments are too large.
constexpr int kVariants = 3;
constexpr int64_t kDivisors = 12;
std::optional<SmallCall> shrink(const Call& call, c10::ArrayRef<c10::IValue> args, int variant, c10::ArrayRef<int64_t> more = {});

}  // namespace tiny
