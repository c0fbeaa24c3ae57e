// Operators that are the CPU's, on the device's memory: of sparse, nested and quantized tensors, and those that nobody can say
// the results of.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace tiny {

// Counted and warned about once. Results lie as the CPU's do.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace tiny
