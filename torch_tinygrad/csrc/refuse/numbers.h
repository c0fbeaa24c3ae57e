// Numbers that do not fit the dtype they are stored in get the CPU's error.
#pragma once

#include "infer/infer.h"

namespace tiny {

// Whether a real number has an equal, up to rounding, in the dtype.
bool fits(const c10::IValue& number, at::ScalarType dtype);

// Positions of the numbers that an operator converts to the dtype of its result.
std::vector<int> converted_numbers(const c10::FunctionSchema& schema);
void check_numbers(const Call& call, const Inferred& inferred, c10::ArrayRef<c10::IValue> args);

}  // namespace tiny
