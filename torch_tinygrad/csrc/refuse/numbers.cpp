// Which numbers become elements as they are, and the check that they can.
#include "refuse/numbers.h"

#include <string_view>
#include <unordered_map>

#include "record/rule_name.h"

namespace tiny {
namespace {

// Operator → the numbers that it converts to the dtype of its result.
const std::unordered_map<std::string_view, std::vector<const char*>>& table() {
  static const auto* rows = new std::unordered_map<std::string_view, std::vector<const char*>>{
      {"fill", {"value"}},
      {"masked_fill", {"value"}},
      {"index_fill", {"value"}},
      {"scatter", {"value"}},
      {"constant_pad_nd", {"value"}},
      {"threshold", {"value"}},
      {"full", {"fill_value"}},
      {"full_like", {"fill_value"}},
      {"new_full", {"fill_value"}},
      {"clamp", {"min", "max"}},
      {"clamp_min", {"min"}},
      {"clamp_max", {"max"}},
      {"add", {"alpha"}},
      {"sub", {"alpha"}},
      {"scalar_tensor", {"s"}},
  };
  return *rows;
}

template <class T>
bool overflows(const c10::IValue& number) {
  return number.isDouble() ? c10::overflows<T, double>(number.toDouble())
                           : c10::overflows<T, int64_t>(number.isBool() ? number.toBool() : number.toInt());
}

// Raises what ATen does where a number has no equal in the dtype.
void check_converts(const at::Scalar& number, at::ScalarType dtype) {
  switch (dtype) {
#define CASE(type, name)                  \
  case at::ScalarType::name:              \
    static_cast<void>(number.to<type>()); \
    break;
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX(CASE)
#undef CASE
    default:
      break;
  }
}

at::ScalarType dtype_of(const Call& call, const Inferred& inferred) {
  if (inferred.returns.empty() || inferred.returns[0].tensors.empty()) return at::ScalarType::Undefined;
  const Inferred::Result& result = inferred.returns[0].tensors[0];
  if (result.kind == Inferred::Result::Kind::Undefined) return at::ScalarType::Undefined;
  return result.kind == Inferred::Result::Kind::Argument ? call.tensors[result.tensor].scalar_type() : result.shape.dtype;
}

void check_number(const c10::IValue& value, at::ScalarType dtype) {
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    // A real part is all that a real dtype takes of a complex number: whether there is more, its value tells.
    const bool is_read = t.defined() && t.numel() == 1 && (!is_tiny(t) || (t.is_complex() && !c10::isComplexType(dtype)));
    if (is_read) check_converts(t.item(), dtype);
  } else if (value.isScalar()) {
    check_converts(value.toScalar(), dtype);
  }
}

}  // namespace

bool fits(const c10::IValue& number, at::ScalarType dtype) {
  switch (dtype) {
#define CASE(type, name)     \
  case at::ScalarType::name: \
    return !overflows<type>(number);
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX(CASE)
#undef CASE
    default:
      return true;
  }
}

// A tensor in place of a value is read; in place of a bound it is an operand, which wraps.
std::vector<int> converted_numbers(const c10::FunctionSchema& schema) {
  std::vector<int> positions;
  if (const auto found = table().find(rule_name(schema)); found != table().end())
    for (const std::string_view argument : found->second) {
      const auto position = schema.argumentIndexWithName(argument);
      if (!position) continue;
      const bool is_tensor = schema.arguments()[*position].type()->isSubtypeOf(*c10::OptionalType::ofTensor());
      if (!is_tensor || argument == "value") positions.push_back(*position);
    }
  return positions;
}

void check_numbers(const Call& call, const Inferred& inferred, c10::ArrayRef<c10::IValue> args) {
  if (call.info.converted.empty()) return;
  at::ScalarType dtype = dtype_of(call, inferred);
  // This one goes by way of double.
  if (call.info.name == "aten::scalar_tensor" && c10::isReducedFloatingType(dtype)) dtype = at::kDouble;
  for (int position : call.info.converted) check_number(args[position], dtype);
}

}  // namespace tiny
