// Arguments and results of operators with other tensors in the place of theirs.
#pragma once

#include <ATen/core/ivalue.h>

namespace tiny {

// The value with every tensor in it replaced.
template <class F>
c10::IValue replaced(const c10::IValue& value, const F& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& t : value.toTensorVector()) tensors.push_back(f(t));
    return tensors;
  }
  if (value.isList()) {
    const auto given = value.toList();
    c10::impl::GenericList list(given.elementType());
    for (size_t i = 0; i < given.size(); i++) list.push_back(replaced(given.get(i), f));
    return list;
  }
  return value;
}

}  // namespace tiny
