// An operator's call as a node of a trace.
#pragma once

#include "record/call.h"
#include "record/trace.h"

namespace tiny {

// `fresh` are the results that are tensors of their own.
void append(Trace& trace, const Call& call, c10::ArrayRef<c10::IValue> args, const std::vector<at::Tensor>& fresh);

}  // namespace tiny
