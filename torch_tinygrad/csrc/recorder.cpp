// Records operators: infers outputs on Meta tensors (with a cache), makes them, appends a node.
#include "recorder.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/select.h>
#include <Python.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <atomic>
#include <unordered_map>

#include "device.h"
#include "python.h"

namespace tiny {
namespace {

std::recursive_mutex device_mutex;
std::atomic<bool> used{false};

// Serial numbers of traces are unique over all devices: each device counts in steps of kMaxDevices.
Trace* make_traces() {
  auto* traces = new Trace[kMaxDevices];
  for (int i = 0; i < kMaxDevices; i++) traces[i].serial = i + 1, traces[i].device = static_cast<c10::DeviceIndex>(i);
  return traces;
}
Trace* const traces = make_traces();

bool is_tiny(const at::Tensor& t) { return t.defined() && t.device().type() == c10::DeviceType::PrivateUse1; }

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
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto& argument = schema.arguments()[i];
    const auto* alias = argument.alias_info();
    const bool extra = std::find(traits.writes.begin(), traits.writes.end(), i) != traits.writes.end();
    const bool lift = std::find(traits.lifts.begin(), traits.lifts.end(), i) != traits.lifts.end();
    info->args.push_back({kind_of(argument), (alias && alias->isWrite()) || extra, lift});
    info->writes |= info->args.back().write;
    info->reads_tensors |= info->args.back().kind <= OpInfo::Kind::OptionalTensorList && !info->args.back().write;
  }
  return info;
}

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

// ---- inference -------------------------------------------------------------------------------------------------

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

// The arguments of a call, gathered in one pass.
struct Call {
  const OpInfo& info;
  c10::SmallVector<at::Tensor, 8> tensors;  // every defined tensor of the device, in order
  Hash key;
  c10::DeviceIndex device = -1;
  bool aliased = false;  // something written shares its storage with another argument
  bool masked = false;   // an index is a mask
};

void check_device(Call& call, const at::Tensor& t, size_t argument) {
  const auto index = t.device().index();
  if (call.device < 0) call.device = index;
  TORCH_CHECK(index == call.device, "Expected all tensors to be on the same device, but found at least two devices, ",
              c10::Device(c10::DeviceType::PrivateUse1, call.device), " and ", t.device(), "! (when checking argument for argument ",
              call.info.op.schema().arguments()[argument].name(), " in method wrapper_", call.info.op.schema().name(), ")");
}

void gather_tensor(Call& call, c10::IValue& slot, const at::Tensor& given, size_t argument) {
  if (!given.defined()) return call.key.add(uint64_t{1});
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
  TORCH_CHECK(call.info.index && given.device().is_cpu(), "Expected all tensors to be on the same device, but found at least two devices, ",
              c10::Device(c10::DeviceType::PrivateUse1, call.device < 0 ? current_device() : call.device), " and ", given.device(),
              "! (when checking argument for argument ", call.info.op.schema().arguments()[argument].name(), " in method wrapper_",
              call.info.op.schema().name(), ")");
  const auto device = c10::Device(c10::DeviceType::PrivateUse1, call.device < 0 ? current_device() : call.device);
  const at::Tensor moved = given.to(device);
  slot = c10::IValue(moved);
  gather_tensor(call, slot, moved, argument);
}

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
  TORCH_CHECK_NOT_IMPLEMENTED(false, "tiny: an argument of type ", value.tagKind(), " cannot be recorded");
}

void hash_scalar_kind(Hash& key, const c10::IValue& value) {
  key.add(uint64_t{20} + (value.isDouble() ? 1 : value.isInt() ? 2 : value.isBool() ? 3 : value.isComplexDouble() ? 4 : 5));
}

bool is_mask(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && (value.toTensor().scalar_type() == at::kBool || value.toTensor().scalar_type() == at::kByte);
}

// Masks among indices. Reading through one gives a shape that depends on values: it becomes the places of its ones.
// Writing through one does not, and stays lazy.
void expand_masks(Call& call, c10::IValue& slot, const at::Tensor& self) {
  c10::List<std::optional<at::Tensor>> expanded;
  int64_t dim = 0;
  bool any = false;
  for (const auto& value : slot.toListRef()) {
    if (!is_mask(value)) {
      expanded.push_back(value.isNone() ? std::nullopt : std::optional<at::Tensor>(value.toTensor()));
      dim++;
      continue;
    }
    any = true;
    const at::Tensor mask = value.toTensor();
    for (int64_t j = 0; j < mask.dim(); j++)
      TORCH_CHECK_INDEX(dim + j < self.dim() && mask.size(j) == self.size(dim + j), "The shape of the mask ", mask.sizes(), " at index ", j,
                        " does not match the shape of the indexed tensor ", self.sizes(), " at index ", dim + j);
    if (call.info.writes) {
      expanded.push_back(mask);
      dim += mask.dim();
      continue;
    }
    const at::Tensor places = mask.to(self.device()).nonzero();
    for (int64_t j = 0; j < mask.dim(); j++) expanded.push_back(places.select(1, j));
    dim += mask.dim();
  }
  call.masked = any && call.info.writes;
  if (any && !call.info.writes) slot = expanded;
}

// First pass over the arguments: checks devices, collects tensors, computes the key of the inference.
void gather(Call& call, c10::ArrayRef<c10::IValue> args, torch::jit::Stack& stack, size_t base) {
  call.key = call.info.hash;
  for (size_t i = 0; i < args.size(); i++) {
    c10::IValue& slot = stack[base + i];
    switch (call.info.args[i].kind) {
      case OpInfo::Kind::Tensor:
        if (slot.isNone()) {
          call.key.add(uint64_t{1});
        } else {
          gather_tensor(call, slot, slot.toTensor(), i);
        }
        break;
      case OpInfo::Kind::TensorList:
        if (slot.isNone()) {
          call.key.add(uint64_t{1});
        } else {
          const auto& list = slot.toListRef();
          call.key.add(list.size());
          for (const auto& v : list) {
            c10::IValue same = v;
            gather_tensor(call, same, v.toTensor(), i);
          }
        }
        break;
      case OpInfo::Kind::OptionalTensorList: {
        if (slot.isNone()) {
          call.key.add(uint64_t{1});
          break;
        }
        if (call.info.index) expand_masks(call, slot, stack[base].toTensor());
        auto list = slot.toList();
        call.key.add(list.size());
        for (size_t k = 0; k < list.size(); k++) {
          c10::IValue element = list.get(k);
          if (element.isNone()) {
            call.key.add(uint64_t{1});
            continue;
          }
          c10::IValue moved = element;
          gather_tensor(call, moved, element.toTensor(), i);
          if (!moved.toTensor().is_same(element.toTensor())) {
            auto copy = list.copy();
            copy.set(k, moved);
            list = copy;
            slot = copy;
          }
        }
        break;
      }
      case OpInfo::Kind::Scalar:
        if (call.info.args[i].lift) {
          hash_scalar_kind(call.key, slot);
        } else {
          hash_value(call.key, slot);
        }
        break;
      case OpInfo::Kind::ScalarList:
        call.key.add(slot.toListRef().size());
        for (const auto& v : slot.toListRef()) hash_scalar_kind(call.key, v);
        break;
      case OpInfo::Kind::Float:
        if (call.info.args[i].lift && slot.isDouble()) {
          hash_scalar_kind(call.key, slot);
        } else {
          hash_value(call.key, slot);
        }
        break;
      case OpInfo::Kind::Generator:
        break;
      case OpInfo::Kind::Device:
        if (!slot.isNone() && call.tensors.empty() && slot.toDevice().type() == c10::DeviceType::PrivateUse1 && slot.toDevice().has_index())
          call.device = slot.toDevice().index();
        break;
      case OpInfo::Kind::Value:
        hash_value(call.key, slot);
        break;
    }
  }
  if (call.device < 0) call.device = current_device();
  if (!call.info.writes || call.tensors.size() < 2) return;
  // What is written may overlap what is read: whether that is an error depends on where both lie.
  for (size_t i = 0; i < call.tensors.size(); i++) {
    for (size_t j = 0; j < i; j++) {
      if (!call.tensors[i].storage().is_alias_of(call.tensors[j].storage())) continue;
      call.aliased = true;
      call.key.add(i * 64 + j);
      call.key.add(static_cast<uint64_t>(call.tensors[i].storage_offset() - call.tensors[j].storage_offset()));
    }
    if (i >= 16) break;  // foreach forms: lists do not alias themselves
  }
}

// Meta tensors of the same geometry. Where arguments alias, so do these: ATen's own overlap checks then apply.
class MetaArguments {
 public:
  explicit MetaArguments(const Call& call) {
    std::unordered_map<const void*, at::Tensor> bases;
    for (const auto& t : call.tensors) {
      if (!call.aliased) {
        metas_.push_back(at::detail::empty_strided_meta(t.sizes(), t.strides(), t.scalar_type()));
        continue;
      }
      at::Tensor& base = bases[t.storage().unsafeGetStorageImpl()];
      if (!base.defined())
        base = at::detail::empty_meta({static_cast<int64_t>(t.storage().nbytes())}, at::kByte);
      at::Tensor meta = at::detail::empty_meta({0}, t.scalar_type());
      meta.unsafeGetTensorImpl()->set_storage_keep_dtype(base.storage());
      meta.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
      metas_.push_back(meta);
    }
  }
  const at::Tensor& next() { return metas_[used_++]; }
  const std::vector<at::Tensor>& all() const { return metas_; }

 private:
  std::vector<at::Tensor> metas_;
  size_t used_ = 0;
};

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

Inferred infer(const Call& call, c10::ArrayRef<c10::IValue> args) {
  MetaArguments metas(call);
  torch::jit::Stack stack;
  stack.reserve(args.size());
  auto meta_of = [&](const at::Tensor& t) { return is_tiny(t) ? metas.next() : t; };
  for (size_t i = 0; i < args.size(); i++) {
    const c10::IValue& value = args[i];
    switch (call.info.args[i].kind) {
      case OpInfo::Kind::Tensor:
        stack.emplace_back(value.isNone() ? value : c10::IValue(meta_of(value.toTensor())));
        break;
      case OpInfo::Kind::TensorList: {
        if (value.isNone()) {
          stack.push_back(value);
          break;
        }
        c10::List<at::Tensor> list;
        for (const auto& v : value.toListRef()) list.push_back(meta_of(v.toTensor()));
        stack.emplace_back(std::move(list));
        break;
      }
      case OpInfo::Kind::OptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto& v : value.toListRef())
          list.push_back(v.isNone() ? std::nullopt : std::optional<at::Tensor>(meta_of(v.toTensor())));
        stack.emplace_back(std::move(list));
        break;
      }
      case OpInfo::Kind::Device:
        stack.emplace_back(c10::Device(c10::DeviceType::Meta));
        break;
      case OpInfo::Kind::Generator:
        stack.emplace_back();
        break;
      default:
        stack.push_back(value);
    }
  }
  const std::vector<at::Tensor> before = metas.all();
  std::vector<Shape> shapes;
  for (const auto& t : before) shapes.push_back(shape_of(t));
  if (call.masked) {
    const at::Tensor &self = stack[0].toTensor(), &values = stack[2].toTensor();
    TORCH_CHECK(self.scalar_type() == values.scalar_type(), "Index put requires the source and destination dtypes match, got ",
                      self.scalar_type(), " for the destination and ", values.scalar_type(), " for the source.");
    stack.resize(1);  // written in place: the result is the first argument
  } else {
    infer_on_meta(call.info, stack);
  }

  Inferred inferred;
  for (const auto& value : stack) {
    Inferred::Return ret;
    if (value.isTensor()) {
      ret.tensors.push_back(result_of(value.toTensor(), before));
    } else if (value.isTensorList()) {
      ret.is_list = true;
      for (const auto& v : value.toListRef()) ret.tensors.push_back(result_of(v.toTensor(), before));
    } else {
      ret.is_value = true;
      ret.value = value;
    }
    inferred.returns.push_back(std::move(ret));
  }
  for (size_t i = 0; i < before.size(); i++)
    if (before[i].sizes() != at::IntArrayRef(shapes[i].sizes) || before[i].strides() != at::IntArrayRef(shapes[i].strides))
      inferred.resized.emplace_back(static_cast<int>(i), shape_of(before[i]));
  return inferred;
}

std::shared_ptr<const Inferred> cached_inference(const Call& call, c10::ArrayRef<c10::IValue> args) {
  static std::mutex mutex;
  static std::unordered_map<Hash, std::shared_ptr<const Inferred>, HashHash> cache;
  {
    std::lock_guard<std::mutex> guard(mutex);
    if (auto it = cache.find(call.key); it != cache.end()) return it->second;
  }
  auto inferred = std::make_shared<const Inferred>(infer(call, args));
  std::lock_guard<std::mutex> guard(mutex);
  if (cache.size() > 100000) cache.clear();
  cache.emplace(call.key, inferred);
  return inferred;
}

// ---- appending a node ------------------------------------------------------------------------------------------

void push_number(Trace& trace, const c10::IValue& value) {
  Number number{};
  number.is_float = value.isDouble();
  if (value.isDouble()) {
    number.f = value.toDouble();
  } else {
    number.i = value.isBool() ? value.toBool() : value.toInt();
  }
  trace.refs.push_back({ArgRef::Kind::Number, static_cast<uint32_t>(trace.numbers.size())});
  trace.numbers.push_back(number);
}

void push_value(Trace& trace, const c10::IValue& value) {
  if (value.isNone()) {
    trace.refs.push_back({ArgRef::Kind::None, 0});
    return;
  }
  trace.refs.push_back({ArgRef::Kind::Value, static_cast<uint32_t>(trace.values.size())});
  trace.values.push_back(value);
}

void push_tensor(Trace& trace, const at::Tensor& t) {
  if (!t.defined()) {
    trace.refs.push_back({ArgRef::Kind::None, 0});
  } else if (is_tiny(t)) {
    trace.refs.push_back({ArgRef::Kind::Region, trace.add_region(t)});
  } else {
    // A 0-dim CPU tensor is a number; its dtype was part of the inference.
    const at::Scalar scalar = t.item();
    trace.key.add(static_cast<uint64_t>(t.scalar_type()));
    if (scalar.isComplex()) {
      hash_value(trace.key, scalar.toComplexDouble());
      push_value(trace, scalar.toComplexDouble());
    } else {
      push_number(trace, scalar.isFloatingPoint() ? c10::IValue(scalar.toDouble()) : c10::IValue(scalar.toLong()));
    }
  }
}

bool liftable(const c10::IValue& value) { return value.isDouble() || value.isInt() || value.isBool(); }

void append(Trace& trace, const Call& call, c10::ArrayRef<c10::IValue> args, const std::vector<at::Tensor>& fresh) {
  const OpInfo& info = call.info;
  Node node{&info, static_cast<uint32_t>(trace.refs.size()), 0, 0, 0};
  trace.key.add(call.key.a);
  trace.key.add(call.key.b);
  c10::SmallVector<uint32_t, 4> written;
  auto push_list = [&](const c10::IValue& value, bool write) {
    const auto& list = value.toListRef();
    trace.refs.push_back({ArgRef::Kind::List, static_cast<uint32_t>(list.size())});
    for (const auto& v : list) {
      push_tensor(trace, v.isNone() ? at::Tensor() : v.toTensor());
      if (write && trace.refs.back().kind == ArgRef::Kind::Region) written.push_back(trace.refs.back().index);
    }
  };
  for (size_t i = 0; i < args.size(); i++) {
    const auto& argument = info.args[i];
    const c10::IValue& value = args[i];
    switch (argument.kind) {
      case OpInfo::Kind::Tensor:
        push_tensor(trace, value.isNone() ? at::Tensor() : value.toTensor());
        if (argument.write && trace.refs.back().kind == ArgRef::Kind::Region) written.push_back(trace.refs.back().index);
        break;
      case OpInfo::Kind::TensorList:
      case OpInfo::Kind::OptionalTensorList:
        if (value.isNone()) {
          push_value(trace, value);
        } else {
          push_list(value, argument.write);
        }
        break;
      case OpInfo::Kind::Scalar:
      case OpInfo::Kind::Float:
        if (argument.lift && liftable(value)) {
          push_number(trace, value);
        } else {
          push_value(trace, value);
        }
        break;
      case OpInfo::Kind::ScalarList:
        trace.refs.push_back({ArgRef::Kind::List, static_cast<uint32_t>(value.toListRef().size())});
        for (const auto& v : value.toListRef()) {
          if (argument.lift && liftable(v)) {
            push_number(trace, v);
          } else {
            hash_value(trace.key, v);
            push_value(trace, v);
          }
        }
        break;
      case OpInfo::Kind::Generator:
      case OpInfo::Kind::Device:
        push_value(trace, c10::IValue());
        break;
      default:
        push_value(trace, value);
    }
  }
  if (info.random) {
    int64_t numbers = 4;
    for (const auto& t : call.tensors) numbers = std::max(numbers, 4 * t.numel());
    for (const auto& t : fresh)
      if (t.defined()) numbers = std::max(numbers, 4 * t.numel());
    std::optional<at::Generator> generator;
    for (size_t i = 0; i < args.size(); i++)
      if (info.args[i].kind == OpInfo::Kind::Generator && !args[i].isNone()) generator = args[i].toGenerator();
    const RandomSlice slice = take_random(generator, call.device, numbers);
    push_number(trace, slice.seed);
    push_number(trace, slice.offset);
  }
  node.outs = static_cast<uint32_t>(trace.refs.size());
  for (const auto& t : fresh) {
    if (!t.defined()) {
      trace.refs.push_back({ArgRef::Kind::None, 0});
      continue;
    }
    trace.refs.push_back({ArgRef::Kind::Region, trace.add_region(t)});
    trace.bytes += static_cast<int64_t>(t.storage().nbytes());
  }
  node.writes = static_cast<uint32_t>(trace.refs.size());
  for (uint32_t region : written) trace.refs.push_back({ArgRef::Kind::Region, region});
  node.end = static_cast<uint32_t>(trace.refs.size());
  trace.nodes.push_back(node);
  stats().nodes++;
}

at::Tensor view_of(const at::Tensor& base, const Shape& shape) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(),
                                                             c10::scalarTypeToTypeMeta(shape.dtype));
  view.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes, shape.strides, shape.offset);
  return view;
}

void resize_written(const at::Tensor& tensor, const Shape& shape) {
  at::native::resize_output(tensor, shape.sizes);
  if (tensor.strides() != at::IntArrayRef(shape.strides))
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes, shape.strides, tensor.storage_offset());
}

}  // namespace

// ---- the lock --------------------------------------------------------------------------------------------------

DeviceLock::DeviceLock() {
  if (device_mutex.try_lock()) return;
  if (Py_IsInitialized() && PyGILState_Check()) {
    PyThreadState* state = PyEval_SaveThread();
    device_mutex.lock();
    PyEval_RestoreThread(state);
  } else {
    device_mutex.lock();
  }
}
DeviceLock::~DeviceLock() { device_mutex.unlock(); }

Stats& stats() {
  static Stats all;
  return all;
}
Bounds& bounds() {
  static Bounds all;
  return all;
}
bool recorder_used() { return used; }
Trace& trace_of(c10::DeviceIndex device) { return traces[device]; }

// ---- the trace -------------------------------------------------------------------------------------------------

int32_t Trace::number_of(Storage* storage) {
  if (storage->trace == serial && storage->index >= 0) return storage->index;
  storage->trace = serial;
  storage->index = static_cast<int32_t>(storages.size());
  storages.push_back(StoragePtr::reclaim_copy(storage));
  return storage->index;
}

uint32_t Trace::add_region(const at::Tensor& tensor) {
  Storage* storage = storage_of(tensor.storage().data_ptr());
  Region region;
  region.storage = number_of(storage);
  region.dtype = tensor.scalar_type();
  region.ndim = static_cast<uint32_t>(tensor.dim());
  region.shape = static_cast<uint32_t>(ints.size());
  region.offset = tensor.storage_offset();
  ints.insert(ints.end(), tensor.sizes().begin(), tensor.sizes().end());
  ints.insert(ints.end(), tensor.strides().begin(), tensor.strides().end());
  key.add(static_cast<uint64_t>(region.storage));
  regions.push_back(region);
  return static_cast<uint32_t>(regions.size() - 1);
}

void Trace::clear() {
  serial += kMaxDevices;
  nodes.clear(), refs.clear(), regions.clear(), ints.clear(), numbers.clear(), values.clear(), storages.clear();
  key = Hash();
  bytes = 0;
}

// ---- entry points ----------------------------------------------------------------------------------------------

at::Tensor make_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::DeviceIndex device) {
  const c10::DeviceIndex previous = current_device();
  if (device != previous) set_current_device(device);
  at::Tensor t = at::detail::empty_strided_generic(sizes, strides, allocator(),
                                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
  if (device != previous) set_current_device(previous);
  return t;
}

void check_readable(const Storage& storage) {
  TORCH_CHECK(storage.lost.empty(), "tiny: this tensor has no value, because computing it failed earlier: ", storage.lost);
}

void count_fallback(const std::string& name) {
  warn_fallback(name);
  stats().fallbacks[name]++;
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const OpInfo& info = op_info(op);
  count_fallback(info.name);
  at::native::cpu_fallback(op, stack);
}

void record(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_fork();
  used = true;
  const OpInfo& info = op_info(op);
  const size_t count = info.args.size(), base = stack->size() - count;
  Call call{info};
  gather(call, torch::jit::last(*stack, count), *stack, base);
  c10::DeviceGuard guard(c10::Device(c10::DeviceType::PrivateUse1, call.device));
  for (const auto& t : call.tensors) check_readable(*storage_of(t.storage().data_ptr()));
  std::shared_ptr<const Inferred> inferred;
  try {
    inferred = cached_inference(call, torch::jit::last(*stack, count));
  } catch (const NoMetaKernel&) {
    return run_on_cpu(op, stack);
  }

  for (const auto& [tensor, shape] : inferred->resized) resize_written(call.tensors[tensor], shape);
  std::vector<at::Tensor> fresh;
  torch::jit::Stack results;
  auto make = [&](const Inferred::Result& result) -> at::Tensor {
    using Kind = Inferred::Result::Kind;
    switch (result.kind) {
      case Kind::Undefined:
        fresh.emplace_back();
        return {};
      case Kind::Argument:
        return call.tensors[result.tensor];
      case Kind::View:
        return view_of(call.tensors[result.tensor], result.shape);
      default:
        fresh.push_back(make_tensor(result.shape.sizes, result.shape.strides, result.shape.dtype, call.device));
        return fresh.back();
    }
  };
  for (const auto& ret : inferred->returns) {
    if (ret.is_value) {
      results.push_back(ret.value);
    } else if (ret.is_list) {
      c10::List<at::Tensor> list;
      for (const auto& result : ret.tensors) list.push_back(make(result));
      results.emplace_back(std::move(list));
    } else {
      results.emplace_back(make(ret.tensors[0]));
    }
  }
  bool full = false;
  if (info.writes || !fresh.empty()) {
    DeviceLock lock;
    Trace& trace = trace_of(call.device);
    append(trace, call, torch::jit::last(*stack, count), fresh);
    full = trace.nodes.size() >= bounds().nodes || trace.bytes >= bounds().bytes;
  }
  torch::jit::drop(*stack, count);
  for (auto& value : results) stack->push_back(std::move(value));
  if (full) flush(call.device, "the bound on pending work");
}

void record_op(const char* name, const char* overload, torch::jit::Stack& stack) {
  record(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), &stack);
}

Buffer& realize(const at::Tensor& tensor, const char* reason) {
  Storage* storage = storage_of(tensor.storage().data_ptr());
  flush(storage->device, reason);
  check_readable(*storage);
  if (storage->buffer == nullptr) storage->buffer = new_buffer(storage->device, storage->nbytes);  // never written
  return *storage->buffer;
}

void resize_storage(const c10::Storage& storage, size_t nbytes) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  const size_t kept = std::min(impl->nbytes(), nbytes);
  const auto device = impl->device().index();
  c10::DeviceGuard guard(impl->device());
  c10::DataPtr data = allocator()->allocate(nbytes);
  const bool has_value = kept > 0 && [&] {
    DeviceLock lock;
    Storage* old = storage_of(impl->data_ptr());
    return old->buffer != nullptr || trace_of(device).refers_to(old);
  }();
  if (!has_value) {
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(nbytes);
    return;
  }
  // The old bytes move into a storage of their own, and are copied lazily into the new one.
  c10::DataPtr old = impl->set_data_ptr(std::move(data));
  const size_t old_nbytes = impl->nbytes();
  impl->set_nbytes(nbytes);
  auto bytes_of = [&](c10::Storage s) {
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(std::move(s), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                            c10::scalarTypeToTypeMeta(at::kByte));
    const int64_t size = static_cast<int64_t>(kept), stride = 1;
    t.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(size), at::IntArrayRef(stride));
    return t;
  };
  const at::Tensor from = bytes_of(c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), old_nbytes, std::move(old), allocator(), true)));
  torch::jit::Stack stack;
  torch::jit::push(stack, bytes_of(storage), from, false);
  record_op("aten::copy_", "", stack);
}

}  // namespace tiny
