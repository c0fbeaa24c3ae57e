// Refusals of values that are not there yet: the check is computed with them, and raised by the flush that does so.
#pragma once

#include <ATen/core/TensorBody.h>

namespace tiny {

// Raises unless all values are from `least` to `most` (what is no number is not): at once where they are there, after the
// next flush otherwise.
void assert_within(const at::Tensor& tensor, double least, double most, const char* message);

// After a flush of the device: raises what does not hold, once. After one that has raised something else: forgets them.
void raise_assertions(c10::DeviceIndex device);
void forget_assertions(c10::DeviceIndex device);

}  // namespace tiny
