#include "record/op_info.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "python/python.h"
#include "refuse/numbers.h"

namespace tiny {
namespace {

OpInfo::Kind kind_of(const c10::Argument& argument) {
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (type->isSubtypeOf(*c10::TensorType::get())) return OpInfo::Kind::Tensor;
  if (type->kind() == c10::TypeKind::NumberType) return OpInfo::Kind::Scalar;
  if (type->kind() == c10::TypeKind::FloatType) return OpInfo::Kind::Float;
  if (type->kind() == c10::TypeKind::GeneratorType) return OpInfo::Kind::Generator;
  if (type->kind() == c10::TypeKind::DeviceObjType) return OpInfo::Kind::Device;
  if (auto list = type->cast<c10::ListType>()) {
    auto element = list->getElementType();
    if (element->kind() == c10::TypeKind::TensorType) return OpInfo::Kind::TensorList;
    if (element->kind() == c10::TypeKind::OptionalType) return OpInfo::Kind::OptionalTensorList;
    if (element->kind() == c10::TypeKind::NumberType) return OpInfo::Kind::ScalarList;
  }
  return OpInfo::Kind::Value;
}

OpInfo* make_op_info(const c10::OperatorHandle& op) {
  auto* info = new OpInfo(op);
  const auto& schema = op.schema();
  info->name = schema.operator_name().name;
  if (!schema.operator_name().overload_name.empty()) info->name += "." + schema.operator_name().overload_name;
  info->hash.add(info->name);
  const OpTraits traits = op_traits(info->name);
  info->random = traits.random;
  info->index = traits.index;
  info->iterated = traits.iterated;
  info->dynamic = traits.dynamic;
  info->refuses = traits.refuses;
  info->absolute = schema.name().find("as_strided") != std::string::npos;
  info->ranges = range_rules(schema);
  info->indices = index_rules(schema);
  info->converted = converted_numbers(schema);
  info->check = value_check(schema);
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto& argument = schema.arguments()[i];
    const auto* alias = argument.alias_info();
    const bool extra = std::find(traits.writes.begin(), traits.writes.end(), i) != traits.writes.end();
    const bool lift = std::find(traits.lifts.begin(), traits.lifts.end(), i) != traits.lifts.end();
    info->args.push_back({kind_of(argument), (alias && alias->isWrite()) || extra, lift});
    if (info->args.back().kind == OpInfo::Kind::Device) info->device = static_cast<int>(i);
    info->writes |= info->args.back().write;
    info->takes_generator |= info->args.back().kind == OpInfo::Kind::Generator;
    info->reads_tensors |= info->args.back().kind <= OpInfo::Kind::OptionalTensorList && !info->args.back().write;
  }
  return info;
}

}  // namespace

const OpInfo& op_info(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static std::unordered_map<const void*, OpInfo*> known;
  thread_local std::unordered_map<const void*, OpInfo*> mine;
  const void* key = &op.schema();
  if (auto it = mine.find(key); it != mine.end()) return *it->second;
  OpInfo* info = nullptr;
  {
    std::lock_guard<std::mutex> guard(mutex);
    if (auto it = known.find(key); it != known.end()) info = it->second;
  }
  if (info == nullptr) {
    info = make_op_info(op);
    std::lock_guard<std::mutex> guard(mutex);
    info = known.emplace(key, info).first->second;
  }
  mine.emplace(key, info);
  return *info;
}

}  // namespace tiny
