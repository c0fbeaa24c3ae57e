// What tables of rules are keyed by.
#pragma once

#include <ATen/core/function_schema.h>

#include <string_view>

namespace tiny {

// Rules are for all overloads of an operator, and for its form that writes in place.
inline std::string_view rule_name(const c10::FunctionSchema& schema) {
  std::string_view name = schema.name();
  if (name.substr(0, 6) != "aten::") return {};
  name.remove_prefix(6);
  if (!name.empty() && name.back() == '_') name.remove_suffix(1);
  return name;
}

}  // namespace tiny
