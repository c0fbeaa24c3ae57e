// Integers divided by zero get the CPU's error before anything is recorded.
#pragma once

#include "record/call.h"

namespace tiny {

// The check of (self, other) for operators that divide whole numbers.
void check_divisor(const Call& call, c10::ArrayRef<c10::IValue> args);

}  // namespace tiny
