// The value of a pending tensor, computed beside the trace, which stays pending.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>

#include "device/buffers.h"

namespace tiny {

// The bytes of a tensor's storage as they will be once all that is recorded has run, where few pending nodes make them of
// values that are there; else nothing. Those nodes run directly, on storages of their own, and once more with the trace.
std::shared_ptr<Buffer> computed_aside(const at::Tensor& tensor, const char* reason);

}  // namespace tiny
