// The arguments of one call, gathered in one pass.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "record/trace.h"

namespace tiny {

inline bool is_tiny(const at::Tensor& t) { return t.defined() && t.device().type() == c10::DeviceType::PrivateUse1; }

struct Call {
  const OpInfo& info;
  c10::SmallVector<at::Tensor, 8> tensors;  // every defined tensor of the device, in order
  Hash key;
  c10::DeviceIndex device = -1;
  bool aliased = false;  // where arguments lie in their storages matters: what is written shares one, or offsets are absolute
  bool masked = false;   // an index is a mask
  uint64_t places = 0;   // indices, a bit for each, that are the places of a mask's ones

  bool is_place(int64_t index) const { return index < 64 && (places >> index & 1); }
};

// First pass over the arguments (the last of the stack, from `base` on): checks devices, collects tensors, computes the
// key of the inference. Index tensors on the CPU move to the device; masks to read through become indices.
void gather(Call& call, torch::jit::Stack& stack, size_t base);

void hash_value(Hash& key, const c10::IValue& value);

// Whether some number that was given in place of a tensor has no equal in the first tensor's dtype: ATen refuses some.
bool has_unfit_number(const Call& call, c10::ArrayRef<c10::IValue> args);

}  // namespace tiny
