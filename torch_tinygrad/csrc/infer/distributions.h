// What distributions refuse of types and bounds.
#pragma once

#include "infer/infer.h"

namespace tiny {

// For what draws without a generator among its arguments, and is not asked of the CPU's kernel, which would take its numbers
// from the CPU's stream: raises what the CPU does.
void check_distribution(const Call& call, c10::ArrayRef<c10::IValue> args);

}  // namespace tiny
