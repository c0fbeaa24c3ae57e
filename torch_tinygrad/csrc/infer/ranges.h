// Ranges of integers, found while recording: whether an index fits is then known without computing it.
#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/core/ivalue.h>

#include "device/storage.h"

namespace tiny {

// Of a tensor of the device, from what is known of its storage. Of a number or a list, too.
Range range_of(const at::Tensor& tensor);
Range range_of(const c10::IValue& value);

// What all integers of a tensor's storage are, where that is known: counters are, and what is computed from sizes.
std::optional<int64_t> known_value(const at::Tensor& tensor);

// Of the values at an address.
Range range_at(const void* values, int64_t count, at::ScalarType dtype);

// A storage, the whole of it or a part, gets values of this range.
void note_write(Storage& storage, bool is_whole, at::ScalarType dtype, const Range& range, bool exact = false);

// Dtypes whose ranges are followed, and all that they can hold.
bool is_integral(at::ScalarType dtype);
Range range_of_dtype(at::ScalarType dtype);

}  // namespace tiny
