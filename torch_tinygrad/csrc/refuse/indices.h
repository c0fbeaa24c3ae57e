// Indices that select no place get the CPU's error, before anything is recorded.
#pragma once

#include "record/call.h"

namespace tiny {

// Raises what the CPU would for an index that selects no place. Values are only looked at where what is known of their
// storage does not tell that they fit.
void check_indices(const Call& call, c10::ArrayRef<c10::IValue> args);

// Whether all values of a tensor of integers are in [least, most]. Looks at them where it must.
bool values_within(const at::Tensor& tensor, int64_t least, int64_t most, std::optional<int64_t> exempt = std::nullopt);

}  // namespace tiny
