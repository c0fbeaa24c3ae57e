// Copies: between tensors of the device (recorded), up from the CPU (bytes now, layout and dtype lazily) and down to it.
#pragma once

#include <ATen/core/TensorBody.h>

namespace tiny {

// The tensor's values on the CPU. Where memory is shared this is a view of it, valid until the next operation.
at::Tensor on_host(const at::Tensor& tensor, const char* reason);

}  // namespace tiny
