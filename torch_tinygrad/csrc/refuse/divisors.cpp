// Division of integers: what a processor traps on never reaches one. A zero is refused in the CPU's words; the lowest
// number divided by -1, rounded towards zero, wraps, where the CPU's kernel ends the process.
#include "refuse/divisors.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/any.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "infer/infer.h"
#include "infer/ranges.h"
#include "record/copy.h"
#include "record/recorder.h"
#include "refuse/indices.h"

namespace tiny {
namespace {

bool is_whole(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && c10::isIntegralType(value.toTensor().scalar_type(), /*includeBool=*/true);
  return value.isInt() || value.isBool();
}

// Whether this is one of the values. Looks at them where what is known of their storage does not tell.
bool holds(const c10::IValue& given, int64_t value) {
  if (!given.isTensor() || !is_tiny(given.toTensor())) return range_of(given).may_be(value);
  const at::Tensor& tensor = given.toTensor();
  if (tensor.numel() == 0) return false;
  if (!range_of(tensor).may_be(value)) return false;
  DeviceLock lock;
  // What all of a storage holds is found once: other calls will ask about it too.
  values_within(tensor, value, value);
  if (!range_of(tensor).may_be(value)) return false;
  return at::any(at::eq(on_host(tensor, "the values of a divisor"), value)).item().toBool();
}

// The divisor, with ones where it would take the lowest number out of its type's range: the quotient is then that number.
at::Tensor without_overflow(const at::Tensor& self, const at::Tensor& other, std::optional<std::string_view> mode) {
  const at::ScalarType dtype = at::result_type(self, other);
  if (mode != "trunc" || (dtype != at::kInt && dtype != at::kLong)) return other;
  const int64_t lowest = range_of_dtype(dtype).low;
  if (!holds(other, -1) || !holds(self, lowest)) return other;
  const at::Tensor overflows = at::eq(self, lowest).logical_and(at::eq(other, -1));
  return at::any(overflows).item().toBool() ? at::where(overflows, 1, other).to(dtype) : other;
}

at::Tensor quotient(const at::Tensor& self, const at::Tensor& other, std::optional<std::string_view> mode) {
  torch::jit::Stack stack;
  torch::jit::push(stack, self, without_overflow(self, other, mode), mode);
  record_op("aten::div", "Tensor_mode", stack);
  return stack[0].toTensor();
}

at::Tensor& quotient_(at::Tensor& self, const at::Tensor& other, std::optional<std::string_view> mode) {
  torch::jit::Stack stack;
  torch::jit::push(stack, self, without_overflow(self, other, mode), mode);
  record_op("aten::div_", "Tensor_mode", stack);
  return self;
}

at::Tensor& quotient_out(const at::Tensor& self, const at::Tensor& other, std::optional<std::string_view> mode, at::Tensor& out) {
  torch::jit::Stack stack;
  torch::jit::push(stack, self, without_overflow(self, other, mode), mode, out);
  record_op("aten::div", "out_mode", stack);
  return out;
}

at::Tensor quotient_by_number(const at::Tensor& self, const at::Scalar& other, std::optional<std::string_view> mode) {
  return quotient(self, at::native::wrapped_scalar_tensor(other), mode);
}

at::Tensor& quotient_by_number_(at::Tensor& self, const at::Scalar& other, std::optional<std::string_view> mode) {
  return quotient_(self, at::native::wrapped_scalar_tensor(other), mode);
}

}  // namespace

void check_divisor(const Call& call, c10::ArrayRef<c10::IValue> args) {
  if (!is_whole(args[0]) || !is_whole(args[1]) || !holds(args[1], 0)) return;
  ask_cpu(call, args, call.tensors);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("div.Tensor_mode", quotient);
  m.impl("div_.Tensor_mode", quotient_);
  m.impl("div.out_mode", quotient_out);
  m.impl("div.Scalar_mode", quotient_by_number);
  m.impl("div_.Scalar_mode", quotient_by_number_);
}

}  // namespace tiny
