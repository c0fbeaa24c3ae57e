// Large calls inferred from small ones of their structure: what the CPU's kernel refuses, and what it makes.
#pragma once

#include <optional>

#include "infer/infer.h"

namespace tiny {

// Throws what the CPU's kernel refuses. None where results do not follow from those of small calls.
std::optional<Inferred> infer_from_samples(const Call& call, c10::ArrayRef<c10::IValue> args);

}  // namespace tiny
