// Convolutions whose weights stay the same from run to run: oneDNN's own layout of them is kept beside their buffer.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "device/storage.h"

namespace tiny {

// The result of a convolution with packed weights, or an undefined tensor if they are not packed: that is done where a
// buffer is read a second time without having been written. `arguments` are those of aten::convolution.
at::Tensor convolve_packed(const std::vector<c10::IValue>& arguments, Buffer& weights);

}  // namespace tiny
