// Sizes that a user has marked as varying, or as staying as they are.
#pragma once

#include <ATen/core/TensorBody.h>

#include "record/trace.h"

namespace tiny {

// What a user says of a size of a tensor. Of traces that use its storage, those with one that varies wait for another size
// before they are compiled; one that stays makes a structure of its own.
void mark_size(const at::Tensor& tensor, int64_t dim, bool varies);
bool has_marked_variable(const Trace& trace);
bool is_marked(const Storage* storage, int64_t size, bool varies);

}  // namespace tiny
