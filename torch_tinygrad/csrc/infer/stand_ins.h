// Tensors in the place of a call's own, on which PyTorch's kernels say what they would do.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "infer/infer.h"

namespace tiny {

// Tensors of the same geometry on another device. Where arguments alias, so do these: ATen's overlap checks then apply.
std::vector<at::Tensor> stand_ins(const Call& call, c10::Device device);

// The arguments with every tensor of the device replaced by the next stand-in, and devices by theirs.
torch::jit::Stack with_stand_ins(const Call& call, c10::ArrayRef<c10::IValue> args, const std::vector<at::Tensor>& stand_ins,
                                 c10::Device device);

std::vector<Shape> shapes_of(const std::vector<at::Tensor>& tensors);
void fill_storage(const at::Tensor& t, int64_t value);

// What the operator returned, and what it did to the stand-ins.
Inferred describe(const torch::jit::Stack& results, const std::vector<at::Tensor>& stand_ins, const std::vector<Shape>& before);

// The CPU's kernel on small arguments of the same geometry says everything exactly: layouts, and refusals with their
// words. A refusal counts if it does not depend on the values, that is, if zeros and ones are refused alike.
std::optional<Inferred> run_on_stand_ins(const Call& call, c10::ArrayRef<c10::IValue> args,
                                         const std::function<std::vector<at::Tensor>()>& make);

size_t bytes_of(const Call& call);

// On stand-ins of the call's own sizes.
std::optional<Inferred> infer_from_cpu(const Call& call, c10::ArrayRef<c10::IValue> args);

}  // namespace tiny
