// Types that the hardware does not have: no tensor of them is made.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace tiny {

// `device` is the hardware's name, as errors say it.
void set_lacking(std::string device, const std::vector<at::ScalarType>& types);

// Refuses a type that the hardware lacks, in the words that PyTorch's MPS device has for it.
bool lacks(at::ScalarType dtype);
void check_type(at::ScalarType dtype);

}  // namespace tiny
