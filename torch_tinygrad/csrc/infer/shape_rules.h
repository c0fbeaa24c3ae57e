// The sizes of results of common operators, for calls that are known to be valid but for their sizes.
#pragma once

#include <optional>

#include "record/call.h"

namespace tiny {

using Sizes = c10::SmallVector<int64_t, 5>;

// The sizes of each result, all of them contiguous; none where there is no rule, or the sizes do not fit it.
std::optional<std::vector<Sizes>> result_sizes(const Call& call, c10::ArrayRef<c10::IValue> args);

}  // namespace tiny
