// Gathers the arguments of a call.
#include "record/call.h"

#include <ATen/ops/_neg_view.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/select.h>

#include <algorithm>

#include "device/device.h"
#include "python/python.h"
#include "refuse/numbers.h"

namespace tiny {

void hash_value(Hash& key, const c10::IValue& value) {
  if (value.isNone()) return key.add(uint64_t{11});
  if (value.isInt()) return key.add(uint64_t{12}), key.add(static_cast<uint64_t>(value.toInt()));
  if (value.isBool()) return key.add(uint64_t{13} + (value.toBool() ? 256 : 0));
  if (value.isDouble()) return key.add(uint64_t{14}), key.add(value.toDouble());
  if (value.isComplexDouble()) return key.add(value.toComplexDouble().real()), key.add(value.toComplexDouble().imag());
  if (value.isString()) return key.add(uint64_t{15}), key.add(std::string_view(value.toStringRef()));
  if (value.isIntList()) {
    key.add(uint64_t{16});
    const auto list = value.toIntList();
    key.add(list.size());
    for (int64_t v : list) key.add(static_cast<uint64_t>(v));
    return;
  }
  if (value.isList()) {
    key.add(uint64_t{17});
    const auto& list = value.toListRef();
    key.add(list.size());
    for (const auto& v : list) hash_value(key, v);
    return;
  }
  if (value.isDevice()) return key.add(uint64_t{18});
  if (value.isGenerator() || value.isStream()) return key.add(uint64_t{19});
  if (value.isSymInt()) return key.add(uint64_t{12}), key.add(static_cast<uint64_t>(value.toSymInt().guard_int(__FILE__, __LINE__)));
  if (value.isObject()) throw NoMetaKernel();  // packed weights and the like: for the CPU alone
  TORCH_CHECK_NOT_IMPLEMENTED(false, "tiny: an argument of type ", value.tagKind(), " cannot be recorded");
}

namespace {

void check_device(Call& call, const at::Tensor& t, size_t argument) {
  const auto index = t.device().index();
  if (call.device < 0) call.device = index;
  TORCH_CHECK(index == call.device, "Expected all tensors to be on the same device, but found at least two devices, ",
              c10::Device(c10::DeviceType::PrivateUse1, call.device), " and ", t.device(), "! (when checking argument for argument ",
              call.info.op.schema().arguments()[argument].name(), " in method wrapper_", call.info.op.schema().name(), ")");
}

// The values of a tensor with the conjugate or negative bit: a region has no place for those.
at::Tensor physical(const at::Tensor& given) {
  const at::Tensor plain = given.is_conj() ? at::conj_physical(given.conj()) : given;
  return plain.is_neg() ? at::neg(plain._neg_view()) : plain;
}

void gather_tensor(Call& call, c10::IValue& value, const at::Tensor& given, size_t argument) {
  if (!given.defined()) return call.key.add(uint64_t{1});
  if (is_tiny(given) && (given.is_conj() || given.is_neg())) {
    TORCH_CHECK_NOT_IMPLEMENTED(!call.info.args[argument].write, "tiny: ", call.info.name, " cannot write to a conjugate or negative view");
    const at::Tensor values = physical(given);
    value = c10::IValue(values);
    return gather_tensor(call, value, values, argument);
  }
  if (is_tiny(given)) {
    check_device(call, given, argument);
    call.tensors.push_back(given);
    call.key.add(uint64_t{2} + (static_cast<uint64_t>(given.scalar_type()) << 8));
    call.key.add(given.sizes());
    call.key.add(given.strides());
    return;
  }
  if (given.dim() == 0 && given.device().is_cpu() && !call.info.args[argument].write) {
    call.key.add(uint64_t{3} + (static_cast<uint64_t>(given.scalar_type()) << 8) +
                 (uint64_t{given.unsafeGetTensorImpl()->is_wrapped_number()} << 16));
    return;
  }
  TORCH_CHECK(!call.info.index || argument != 0, "indices should be either on ", given.device(),
              " or on the same device as the indexed tensor (", given.device(), ")");
  TORCH_CHECK(call.info.index && given.device().is_cpu(), "Expected all tensors to be on the same device, but found at least two devices, ",
              c10::Device(c10::DeviceType::PrivateUse1, call.device < 0 ? current_device() : call.device), " and ", given.device(),
              "! (when checking argument for argument ", call.info.op.schema().arguments()[argument].name(), " in method wrapper_",
              call.info.op.schema().name(), ")");
  const auto device = c10::Device(c10::DeviceType::PrivateUse1, call.device < 0 ? current_device() : call.device);
  const at::Tensor moved = given.to(device);
  value = c10::IValue(moved);
  gather_tensor(call, value, moved, argument);
}

// What inference may depend on, short of the number itself: operators refuse numbers that do not fit a dtype.
void hash_scalar_kind(Call& call, const c10::IValue& value) {
  const bool is_real = value.isDouble() || value.isInt() || value.isBool();
  const bool is_too_big = is_real && !call.tensors.empty() && !fits(value, call.tensors[0].scalar_type());
  call.key.add(uint64_t{20} +
               (value.isDouble()          ? 1
                : value.isInt()           ? 2
                : value.isBool()          ? 3
                : value.isComplexDouble() ? 4
                                          : 5) +
               (is_too_big ? 256 + 256 * fits(value, at::kFloat) : 0));
}

bool is_narrow(at::ScalarType dtype) { return c10::isIntegralType(dtype, /*includeBool=*/false) && c10::elementSize(dtype) < 8; }

bool is_mask(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() &&
         (value.toTensor().scalar_type() == at::kBool || value.toTensor().scalar_type() == at::kByte);
}

// Masks among indices. Reading through one gives a shape that depends on values, and so does one beside other indices: it
// becomes the places of its ones. Writing through a mask alone does not, and stays lazy.
void expand_masks(Call& call, c10::IValue& given, const at::Tensor& self) {
  c10::List<std::optional<at::Tensor>> expanded;
  int64_t dim = 0;
  bool any = false;
  const auto indices = given.toListRef();
  auto is_given = [](const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); };
  const bool is_alone = std::count_if(indices.begin(), indices.end(), is_given) == 1;
  const bool stays = call.info.writes && is_alone;
  for (const auto& value : indices) {
    if (!is_mask(value)) {
      expanded.push_back(value.isNone() ? std::nullopt : std::optional<at::Tensor>(value.toTensor()));
      dim++;
      continue;
    }
    any = true;
    const at::Tensor mask = value.toTensor();
    if (mask.scalar_type() == at::kByte)
      TORCH_WARN("indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.");
    for (int64_t j = 0; j < mask.dim(); j++)
      TORCH_CHECK_INDEX(dim + j < self.dim() && mask.size(j) == self.size(dim + j), "The shape of the mask ", mask.sizes(), " at index ", j,
                        " does not match the shape of the indexed tensor ", self.sizes(), " at index ", dim + j);
    if (stays) {
      dim += mask.dim();
      continue;
    }
    const at::Tensor places = mask.to(self.device()).nonzero();
    for (int64_t j = 0; j < mask.dim() && expanded.size() < 64; j++) call.places |= uint64_t{1} << (expanded.size() + j);
    for (int64_t j = 0; j < mask.dim(); j++) expanded.push_back(places.select(1, j));
    dim += mask.dim();
  }
  call.masked = any && stays;
  if (any && !stays) given = expanded;
}

// ATen fills through a single mask with one value of any dtype; all other values must have the target's.
void check_index_put(const Call& call, const at::Tensor& self, const at::Tensor& values) {
  TORCH_CHECK(self.scalar_type() == values.scalar_type() || (call.masked && values.numel() == 1),
              "Index put requires the source and destination dtypes match, got ", self.scalar_type(), " for the destination and ",
              values.scalar_type(), " for the source.");
}

}  // namespace

bool has_unfit_number(const Call& call, c10::ArrayRef<c10::IValue> args) {
  if (call.tensors.empty() || !is_narrow(call.tensors[0].scalar_type())) return false;
  return std::any_of(args.begin(), args.end(), [&](const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined() || is_tiny(value.toTensor())) return false;
    const at::Tensor& number = value.toTensor();
    if (!number.unsafeGetTensorImpl()->is_wrapped_number() || number.scalar_type() != at::kLong) return false;
    return !fits(c10::IValue(number.item().toLong()), call.tensors[0].scalar_type());
  });
}

namespace {

void gather_list(Call& call, const c10::IValue& list, size_t argument) {
  const auto& elements = list.toListRef();
  call.key.add(elements.size());
  for (const auto& element : elements) {
    c10::IValue same = element;
    gather_tensor(call, same, element.toTensor(), argument);
  }
}

// Some of an operator's dimensions, or all of them, have an index. Where one moves to the device the list is another.
void gather_indices(Call& call, c10::IValue& given, size_t argument) {
  auto list = given.toList();
  call.key.add(list.size());
  for (size_t k = 0; k < list.size(); k++) {
    c10::IValue element = list.get(k);
    if (element.isNone()) {
      call.key.add(uint64_t{1});
      continue;
    }
    c10::IValue moved = element;
    gather_tensor(call, moved, element.toTensor(), argument);
    if (moved.toTensor().is_same(element.toTensor())) continue;
    auto copy = list.copy();
    copy.set(k, moved);
    list = copy;
    given = copy;
  }
}

// A number that may be an input of programs: its kind alone is part of the key.
void gather_number(Call& call, const c10::IValue& number, bool is_input) {
  if (is_input) {
    hash_scalar_kind(call, number);
  } else {
    hash_value(call.key, number);
  }
}

void gather_argument(Call& call, torch::jit::Stack& stack, size_t base, size_t i) {
  const OpInfo::Arg& argument = call.info.args[i];
  c10::IValue& given = stack[base + i];
  if (given.isNone() && argument.kind <= OpInfo::Kind::OptionalTensorList) return call.key.add(uint64_t{1});
  switch (argument.kind) {
    case OpInfo::Kind::Tensor:
      return gather_tensor(call, given, given.toTensor(), i);
    case OpInfo::Kind::TensorList:
      return gather_list(call, given, i);
    case OpInfo::Kind::OptionalTensorList:
      if (call.info.index) {
        expand_masks(call, given, stack[base].toTensor());
        if (call.masked) check_index_put(call, stack[base].toTensor(), stack[base + 2].toTensor());
      }
      return gather_indices(call, given, i);
    case OpInfo::Kind::Scalar:
      return gather_number(call, given, argument.lift && !given.isComplexDouble());
    case OpInfo::Kind::ScalarList:
      call.key.add(given.toListRef().size());
      for (const auto& number : given.toListRef()) hash_scalar_kind(call, number);
      return;
    case OpInfo::Kind::Float:  // distributions refuse some numbers
      return gather_number(call, given, argument.lift && given.isDouble() && !call.info.random);
    case OpInfo::Kind::Generator:
      return;
    case OpInfo::Kind::Device:
      if (!given.isNone() && call.tensors.empty() && given.toDevice().type() == c10::DeviceType::PrivateUse1 &&
          given.toDevice().has_index())
        call.device = given.toDevice().index();
      return;
    case OpInfo::Kind::Value:
      return hash_value(call.key, given);
  }
}

// What is written may overlap what is read: whether that is an error depends on where both lie.
void gather_aliases(Call& call) {
  for (size_t i = 0; i < call.tensors.size(); i++) {
    for (size_t j = 0; j < i; j++) {
      if (!call.tensors[i].storage().is_alias_of(call.tensors[j].storage())) continue;
      call.aliased = true;
      call.key.add(i * 128 + j * 2 + call.tensors[i].is_same(call.tensors[j]));
      call.key.add(static_cast<uint64_t>(call.tensors[i].storage_offset() - call.tensors[j].storage_offset()));
    }
    if (i >= 16) break;  // foreach forms: lists do not alias themselves
  }
}

}  // namespace

void gather(Call& call, torch::jit::Stack& stack, size_t base) {
  call.key = call.info.hash;
  for (size_t i = 0; i < call.info.args.size(); i++) gather_argument(call, stack, base, i);
  if (call.device < 0) call.device = current_device();
  if (has_unfit_number(call, torch::jit::last(stack, call.info.args.size()))) call.key.add(uint64_t{21});
  if (call.info.absolute) {
    call.aliased = true;
    for (const auto& t : call.tensors) call.key.add(static_cast<uint64_t>(t.storage_offset())), call.key.add(t.storage().nbytes());
  }
  if (call.info.writes && call.tensors.size() >= 2) gather_aliases(call);
}

}  // namespace tiny
