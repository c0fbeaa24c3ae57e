#include "infer/stand_ins.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/fill.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "operators/kernels_only.h"
#include "record/alone.h"

namespace tiny {
namespace {

Shape shape_of(const at::Tensor& t) {
  return {{t.sizes().begin(), t.sizes().end()}, {t.strides().begin(), t.strides().end()}, t.scalar_type(), t.storage_offset()};
}

Inferred::Result result_of(const at::Tensor& out, const std::vector<at::Tensor>& metas) {
  using Kind = Inferred::Result::Kind;
  if (!out.defined()) return {Kind::Undefined, -1, {}};
  for (size_t i = 0; i < metas.size(); i++)
    if (out.is_same(metas[i])) return {Kind::Argument, static_cast<int>(i), {}};
  for (size_t i = 0; i < metas.size(); i++)
    if (out.storage().is_alias_of(metas[i].storage())) return {Kind::View, static_cast<int>(i), shape_of(out)};
  return {Kind::Fresh, -1, shape_of(out)};
}

}  // namespace

// Tensors of the same geometry on another device. Where arguments alias, so do these: ATen's overlap checks then apply.
std::vector<at::Tensor> stand_ins(const Call& call, c10::Device device) {
  std::vector<at::Tensor> result;
  std::unordered_map<const void*, at::Tensor> bases;
  for (const auto& t : call.tensors) {
    if (!call.aliased) {
      result.push_back(at::empty_strided(t.sizes(), t.strides(), at::TensorOptions().dtype(t.dtype()).device(device)));
      continue;
    }
    const size_t first =
        std::find_if(call.tensors.begin(), call.tensors.end(), [&](const auto& other) { return other.is_same(t); }) - call.tensors.begin();
    if (first < result.size()) {
      result.push_back(result[first]);
      continue;
    }
    at::Tensor& base = bases[t.storage().unsafeGetStorageImpl()];
    if (!base.defined())
      base = at::empty({static_cast<int64_t>(t.storage().nbytes())}, at::TensorOptions().dtype(at::kByte).device(device));
    at::Tensor alias = at::empty({0}, at::TensorOptions().dtype(t.dtype()).device(device));
    alias.unsafeGetTensorImpl()->set_storage_keep_dtype(base.storage());
    alias.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    result.push_back(alias);
  }
  return result;
}

// The arguments with every tensor of the device replaced by the next stand-in, and devices by theirs.
torch::jit::Stack with_stand_ins(const Call& call, c10::ArrayRef<c10::IValue> args, const std::vector<at::Tensor>& stand_ins,
                                 c10::Device device) {
  torch::jit::Stack stack;
  stack.reserve(args.size());
  size_t next = 0;
  // What else there is are 0-dim tensors of the CPU, which count as being on any device, though not to all Meta kernels.
  auto stand_in = [&](const at::Tensor& t) {
    if (is_tiny(t)) return stand_ins[next++];
    const bool moves = device.is_meta() && t.defined() && !t.unsafeGetTensorImpl()->is_wrapped_number();
    return moves ? at::empty({}, at::TensorOptions().dtype(t.dtype()).device(device)) : t;
  };
  for (size_t i = 0; i < args.size(); i++) {
    const c10::IValue& value = args[i];
    const OpInfo::Kind kind = call.info.args[i].kind;
    if (kind == OpInfo::Kind::Device) {
      stack.emplace_back(device);
    } else if (kind == OpInfo::Kind::Generator) {
      // A generator of its own, so that the CPU's default one stays where it is.
      stack.push_back(device.is_cpu() ? c10::IValue(at::detail::createCPUGenerator()) : c10::IValue());
    } else if (value.isNone()) {
      stack.push_back(value);
    } else if (kind == OpInfo::Kind::Tensor) {
      stack.emplace_back(stand_in(value.toTensor()));
    } else if (kind == OpInfo::Kind::TensorList) {
      c10::List<at::Tensor> list;
      for (const auto& v : value.toListRef()) list.push_back(stand_in(v.toTensor()));
      stack.emplace_back(std::move(list));
    } else if (kind == OpInfo::Kind::OptionalTensorList) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& v : value.toListRef()) list.push_back(v.isNone() ? std::nullopt : std::optional<at::Tensor>(stand_in(v.toTensor())));
      stack.emplace_back(std::move(list));
    } else {
      stack.push_back(value);
    }
  }
  return stack;
}

// What the operator returned, and what it did to the stand-ins.
Inferred describe(const torch::jit::Stack& results, const std::vector<at::Tensor>& stand_ins, const std::vector<Shape>& before) {
  Inferred inferred;
  for (const auto& value : results) {
    Inferred::Return ret;
    if (value.isTensor()) {
      ret.tensors.push_back(result_of(value.toTensor(), stand_ins));
    } else if (value.isTensorList()) {
      ret.is_list = true;
      for (const auto& v : value.toListRef()) ret.tensors.push_back(result_of(v.toTensor(), stand_ins));
    } else {
      ret.is_value = true;
      ret.value = value;
    }
    inferred.returns.push_back(std::move(ret));
  }
  for (size_t i = 0; i < stand_ins.size(); i++)
    if (stand_ins[i].sizes() != at::IntArrayRef(before[i].sizes) || stand_ins[i].strides() != at::IntArrayRef(before[i].strides))
      inferred.resized.emplace_back(static_cast<int>(i), shape_of(stand_ins[i]));
  return inferred;
}

std::vector<Shape> shapes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Shape> shapes;
  for (const auto& t : tensors) shapes.push_back(shape_of(t));
  return shapes;
}

void fill_storage(const at::Tensor& t, int64_t value) {
  const int64_t elements = static_cast<int64_t>(t.storage().nbytes() / t.itemsize());
  if (elements) at::from_blob(t.storage().mutable_data(), {elements}, at::TensorOptions().dtype(t.dtype())).fill_(value);
}

// LAPACK writes wherever pivots say, and PyTorch checks those from 2.13 on: ones are pivots of any matrix, zeros of none.
bool trusts_pivots(const OpInfo& info) { return info.name.rfind("aten::linalg_ldl_solve", 0) == 0; }

std::optional<Inferred> run_on_stand_ins(const Call& call, c10::ArrayRef<c10::IValue> args,
                                         const std::function<std::vector<at::Tensor>()>& make) {
  const Alone alone;
  const KernelsOnly kernels_only;
  std::string refused;
  // Whether zeros were refused in the same words.
  auto refused_again = [&](const std::string& message) { return std::exchange(refused, message) == message; };
  for (const int64_t fill : {trusts_pivots(call.info) ? 1 : 0, 1}) {
    const std::vector<at::Tensor> tensors = make();
    for (const auto& t : tensors) fill_storage(t, fill);
    const std::vector<Shape> before = shapes_of(tensors);
    torch::jit::Stack stack = with_stand_ins(call, args, tensors, c10::Device(c10::kCPU));
    try {
      call.info.op.callBoxed(&stack);
      return describe(stack, tensors, before);
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      if (message.find("Could not run '") != std::string::npos) return std::nullopt;
      const bool never_works = dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr;
      if (never_works || refused_again(message)) throw;
    } catch (const std::runtime_error& error) {  // numbers that do not fit a dtype
      if (refused_again(error.what())) throw;
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

size_t bytes_of(const Call& call) {
  size_t bytes = 0;
  for (const auto& t : call.tensors) bytes += call.aliased ? t.storage().nbytes() : t.nbytes();
  return bytes;
}

std::optional<Inferred> infer_from_cpu(const Call& call, c10::ArrayRef<c10::IValue> args) {
  return run_on_stand_ins(call, args, [&] { return stand_ins(call, c10::Device(c10::kCPU)); });
}

}  // namespace tiny
