// CPU tensors over the memory of tensors of the device, for libraries that read and write memory themselves.
#pragma once

#include <ATen/core/TensorBody.h>

namespace tiny {

// A CPU tensor on the same bytes, which it keeps alive; everything that was recorded on them before has run. Where memory
// is the device's own it is a copy. Writing through it is allowed until the next operation on the device's tensor.
at::Tensor host_view(const at::Tensor& tensor, const char* reason);

}  // namespace tiny
