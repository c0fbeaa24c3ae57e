#include "record/append.h"

#include <ATen/TensorGeometry.h>
#include <c10/util/accumulate.h>

#include <optional>

#include "device/device.h"
#include "flush/journal.h"
#include "infer/range_rules.h"
#include "infer/ranges.h"

namespace tiny {
namespace {

at::ScalarType dtype_of(const c10::IValue& number) {
  return number.isDouble() ? at::kDouble : number.isBool() ? at::kBool : number.isComplexDouble() ? at::kComplexDouble : at::kLong;
}

void push_number(Trace& trace, const c10::IValue& value) {
  Number number{};
  number.is_float = value.isDouble();
  if (value.isDouble()) {
    number.f = value.toDouble();
  } else {
    number.i = value.isBool() ? value.toBool() : value.toInt();
  }
  trace.refs.push_back({ArgRef::Kind::Number, static_cast<uint32_t>(trace.numbers.size()), dtype_of(value)});
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

void push_tensor(Trace& trace, Hash& hash, const at::Tensor& t) {
  if (!t.defined()) {
    trace.refs.push_back({ArgRef::Kind::None, 0});
  } else if (is_tiny(t)) {
    trace.refs.push_back({ArgRef::Kind::Region, trace.add_region(t)});
  } else {
    // A 0-dim CPU tensor is a number; its dtype was part of the inference.
    const at::Scalar scalar = t.item();
    hash.add(static_cast<uint64_t>(t.scalar_type()));
    if (scalar.isComplex()) {
      hash_value(hash, scalar.toComplexDouble());
      push_value(trace, scalar.toComplexDouble());
    } else {
      push_number(trace, scalar.isFloatingPoint() ? c10::IValue(scalar.toDouble()) : c10::IValue(scalar.toLong()));
    }
    trace.refs.back().dtype = t.scalar_type();
    trace.refs.back().wrapped = t.unsafeGetTensorImpl()->is_wrapped_number();
  }
}

// A number that may be an input of programs.
void push_scalar(Trace& trace, const c10::IValue& value, bool lift) {
  if (lift && (value.isDouble() || value.isInt() || value.isBool())) {
    push_number(trace, value);
  } else {
    push_value(trace, value);
  }
}

// The node of a call, as its parts are appended to the trace.
class Append {
 public:
  Append(Trace& trace, const Call& call, c10::ArrayRef<c10::IValue> args, const std::vector<at::Tensor>& fresh)
      : trace_(trace), call_(call), args_(args), fresh_(fresh) {}

  void run() {
    node_ = Node{&call_.info, end(), 0, 0, 0, call_.key.a, call_.key};
    for (size_t i = 0; i < args_.size(); i++) argument(call_.info.args[i], args_[i]);
    if (call_.info.random) random_slice();
    node_.outs = end();
    for (const auto& t : fresh_) result(t);
    trace_.key.add(node_.hash.a);
    trace_.key.add(node_.hash.b);
    node_.writes = end();
    for (uint32_t region : written_) trace_.refs.push_back({ArgRef::Kind::Region, region});
    node_.end = end();
    for (uint32_t r = node_.outs; r < node_.end; r++)
      if (trace_.refs[r].kind == ArgRef::Kind::Region) note_written(trace_.regions[trace_.refs[r].index], r - node_.outs);
    trace_.nodes.push_back(node_);
  }

 private:
  uint32_t end() const { return static_cast<uint32_t>(trace_.refs.size()); }

  void argument(const OpInfo::Arg& kind, const c10::IValue& value) {
    switch (kind.kind) {
      case OpInfo::Kind::Tensor:
        return tensor(value, kind.write);
      case OpInfo::Kind::TensorList:
      case OpInfo::Kind::OptionalTensorList:
        if (value.isNone()) return push_value(trace_, value);
        begin_list(value);
        for (const auto& element : value.toListRef()) tensor(element, kind.write);
        return;
      case OpInfo::Kind::Scalar:
      case OpInfo::Kind::Float:
        return push_scalar(trace_, value, kind.lift);
      case OpInfo::Kind::ScalarList:
        begin_list(value);
        for (const auto& element : value.toListRef()) {
          push_scalar(trace_, element, kind.lift);
          if (trace_.refs.back().kind != ArgRef::Kind::Number) hash_value(node_.hash, element);
        }
        return;
      case OpInfo::Kind::Generator:
      case OpInfo::Kind::Device:
        return push_value(trace_, c10::IValue());
      default:
        return push_value(trace_, value);
    }
  }

  void begin_list(const c10::IValue& value) {
    trace_.refs.push_back({ArgRef::Kind::List, static_cast<uint32_t>(value.toListRef().size())});
  }

  void tensor(const c10::IValue& value, bool write) {
    push_tensor(trace_, node_.hash, value.isNone() ? at::Tensor() : value.toTensor());
    if (write && trace_.refs.back().kind == ArgRef::Kind::Region) written_.push_back(trace_.refs.back().index);
  }

  // Four numbers for each element of the largest tensor: where they lie in the generator's stream are inputs of the program.
  void random_slice() {
    int64_t numbers = 4;
    for (const auto& t : call_.tensors) numbers = std::max(numbers, 4 * t.numel());
    for (const auto& t : fresh_)
      if (t.defined()) numbers = std::max(numbers, 4 * t.numel());
    std::optional<at::Generator> generator;
    for (size_t i = 0; i < args_.size(); i++)
      if (call_.info.args[i].kind == OpInfo::Kind::Generator && !args_[i].isNone()) generator = args_[i].toGenerator();
    const RandomSlice slice = take_random(generator, call_.device, numbers);
    push_number(trace_, slice.seed);
    push_number(trace_, slice.offset);
  }

  void result(const at::Tensor& t) {
    if (!t.defined()) return trace_.refs.push_back({ArgRef::Kind::None, 0});
    trace_.refs.push_back({ArgRef::Kind::Region, trace_.add_region(t)});
    trace_.bytes += static_cast<int64_t>(t.storage().nbytes());
  }

  // What is known of a region's values once the node has run.
  void note_written(const Region& region, size_t result) {
    Storage& storage = *trace_.storages[region.storage];
    storage.written_in = trace_.serial;
    const c10::IntArrayRef sizes(trace_.ints.data() + region.shape, region.ndim), strides(sizes.end(), region.ndim);
    const int64_t numel = c10::multiply_integers(sizes);
    const Range range = result_range(call_.info.ranges, args_, result, region.dtype, numel);
    const bool is_whole =
        !range.is_all() && numel * c10::elementSize(region.dtype) >= storage.nbytes && at::geometry_is_contiguous(sizes, strides);
    note_write(storage, is_whole, region.dtype, range);
  }

  Trace& trace_;
  const Call& call_;
  c10::ArrayRef<c10::IValue> args_;
  const std::vector<at::Tensor>& fresh_;
  Node node_{};
  c10::SmallVector<uint32_t, 4> written_;
};

}  // namespace

void append(Trace& trace, const Call& call, c10::ArrayRef<c10::IValue> args, const std::vector<at::Tensor>& fresh) {
  Append(trace, call, args, fresh).run();
  if (watched_by(Watcher::Explain)) note_source(trace);
}

}  // namespace tiny
