// The sizes of results of common operators, for calls that are known to be valid but for their sizes.
#pragma once

#include <optional>

#include "infer/infer.h"
#include "record/call.h"

namespace tiny {

using Sizes = c10::SmallVector<int64_t, 5>;

// The sizes of each result, all of them contiguous; none where there is no rule, or the sizes do not fit it.
std::optional<std::vector<Sizes>> result_sizes(const OpInfo& info, c10::ArrayRef<at::Tensor> tensors, c10::ArrayRef<c10::IValue> args);

// What was inferred of another call, with these sizes for its results; none where one is no fresh tensor.
std::optional<Inferred> resized(Inferred inferred, const std::vector<Sizes>& sizes);

}  // namespace tiny
