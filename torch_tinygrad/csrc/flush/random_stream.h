// Random operators on the host's memory, by the stream that lower/random.py defines: a value is a function of the
// generator's seed, its offset and the element's index.
#pragma once

#include <ATen/core/stack.h>

#include "record/trace.h"

namespace tiny {

// Whether this operator's stream is written here.
bool draws(const OpInfo& info);

// Computes the operator's results into `results`: what it writes in place, its `out=`, or its fresh results.
void draw(const OpInfo& info, const torch::jit::Stack& args, const std::vector<at::Tensor>& results, int64_t seed, int64_t offset);

// A seed for the CPU's generator, for operators that have no stream of their own.
uint64_t seed_for_cpu(int64_t seed, int64_t offset);

}  // namespace tiny
