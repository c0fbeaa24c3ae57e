// Places of elements that are not zero, found at once: how many there are is known only then.
#pragma once

#include <ATen/core/TensorBody.h>

#include <optional>

namespace tiny {

// By ATen's kernel on the device's own memory, which counts and writes without a trip to the host in between; nothing where
// memory is the host's, as counting then costs no trip and fuses with what is counted, and where ATen has no such kernel.
std::optional<at::Tensor> nonzero_by_library(const at::Tensor& tensor);

}  // namespace tiny
