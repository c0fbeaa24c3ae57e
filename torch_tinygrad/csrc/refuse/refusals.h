// Operators whose CPU kernels look at values before they compute, and refuse some: these look as well.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

namespace tiny {

// A look at the arguments' values before the call is recorded: raises what the CPU's kernel does when it meets them.
struct Call;
using ValueCheck = void (*)(const Call&, c10::ArrayRef<c10::IValue>);
ValueCheck value_check(const c10::FunctionSchema& schema);

}  // namespace tiny
