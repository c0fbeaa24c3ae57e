// What operators without tensors among their arguments make.
#pragma once

#include <optional>

#include "infer/infer.h"

namespace tiny {

// From the CPU's kernel, asked for few elements or none; it refuses in its own words. None for what is better asked otherwise.
std::optional<Inferred> infer_factory(const Call& call, c10::ArrayRef<c10::IValue> args);

}  // namespace tiny
