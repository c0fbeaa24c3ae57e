// What an operator makes of tensors of given metadata: PyTorch's own answer, from its Meta kernels, cached.
#pragma once

#include <memory>

#include "record/call.h"

namespace tiny {

struct Shape {
  c10::SmallVector<int64_t, 5> sizes, strides;
  at::ScalarType dtype;
  int64_t offset = 0;
};

// What an operator does with tensors of given metadata: results by return value, and how it resizes what it writes.
struct Inferred {
  struct Result {
    enum class Kind : uint8_t { Fresh, Argument, View, Undefined } kind;
    int tensor = -1;  // the argument it is, or is a view of
    Shape shape;
  };
  struct Return {
    bool is_list = false;
    std::vector<Result> tensors;
    c10::IValue value;  // a return that is no tensor
    bool is_value = false;
  };
  std::vector<Return> returns;
  std::vector<std::pair<int, Shape>> resized;
};

std::shared_ptr<const Inferred> cached_inference(const Call& call, c10::ArrayRef<c10::IValue> args);

// Runs the operator on the CPU for the error it raises: on the values of some of its arguments, and on stand-ins for the
// others.
void ask_cpu(const Call& call, c10::ArrayRef<c10::IValue> args, c10::ArrayRef<at::Tensor> with_values);

}  // namespace tiny
