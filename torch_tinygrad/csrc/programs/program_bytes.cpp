// Programs of the host as bytes: plain data, read back without Python.
#include <ATen/ops/empty.h>

#include <optional>
#include <stdexcept>

#include "programs/images.h"
#include "programs/plain_data.h"
#include "programs/program.h"

namespace tiny {
namespace {

struct Unwritable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Tag : uint8_t { None, Bool, Int, Double, Complex, Text, Cpu, Tensor, Ints, Doubles, Bools, Tensors, OptionalTensors };

void write(Writer& w, const c10::IValue& value) {
  auto tag = [&](Tag t) { w.number(t); };
  if (value.isNone()) return tag(Tag::None);
  if (value.isBool()) return tag(Tag::Bool), w.number<uint8_t>(value.toBool());
  if (value.isInt()) return tag(Tag::Int), w.number<int64_t>(value.toInt());
  if (value.isDouble()) return tag(Tag::Double), w.number(value.toDouble());
  if (value.isComplexDouble()) return tag(Tag::Complex), w.number(value.toComplexDouble());
  if (value.isString()) return tag(Tag::Text), w.text(value.toStringRef());
  if (value.isDevice() && value.toDevice().is_cpu()) return tag(Tag::Cpu);
  if (value.isTensor()) return tag(Tag::Tensor);
  if (value.isIntList()) return tag(Tag::Ints), w.numbers(value.toIntVector());
  if (value.isDoubleList()) return tag(Tag::Doubles), w.numbers(value.toDoubleVector());
  if (value.isBoolList()) {
    tag(Tag::Bools);
    return w.list(value.toBoolList(), [&](bool item) { w.number<uint8_t>(item); });
  }
  if (value.isTensorList()) return tag(Tag::Tensors), w.number<uint64_t>(value.toTensorVector().size());
  if (value.isOptionalTensorList()) {
    tag(Tag::OptionalTensors);
    return w.list(value.toOptionalTensorVector(), [&](const auto& item) { w.number<uint8_t>(item.has_value()); });
  }
  throw Unwritable(value.tagKind());
}

c10::IValue read_value(Reader& r) {
  const at::Tensor placeholder = at::empty({0});
  switch (r.number<Tag>()) {
    case Tag::None:
      return {};
    case Tag::Bool:
      return r.number<uint8_t>() != 0;
    case Tag::Int:
      return r.number<int64_t>();
    case Tag::Double:
      return r.number<double>();
    case Tag::Complex:
      return r.number<c10::complex<double>>();
    case Tag::Text:
      return r.text();
    case Tag::Cpu:
      return c10::Device(c10::kCPU);
    case Tag::Tensor:
      return placeholder;
    case Tag::Ints:
      return r.numbers<int64_t>();
    case Tag::Doubles:
      return r.numbers<double>();
    case Tag::Bools: {
      c10::List<bool> list;
      for (size_t n = r.count(); n > 0; n--) list.push_back(r.number<uint8_t>() != 0);
      return list;
    }
    case Tag::Tensors: {
      const auto n = r.number<uint64_t>();
      if (n > 1 << 20) throw Damaged("a list of tensors");
      return std::vector<at::Tensor>(n, placeholder);
    }
    case Tag::OptionalTensors: {
      c10::List<std::optional<at::Tensor>> list;
      for (size_t n = r.count(); n > 0; n--) list.push_back(r.number<uint8_t>() ? std::optional<at::Tensor>(placeholder) : std::nullopt);
      return list;
    }
  }
  throw Damaged("an argument of unknown type");
}

void write(Writer& w, const SlotTensor& t) { w.number(t.slot), w.number(t.dtype), w.numbers(t.sizes), w.numbers(t.strides); }

SlotTensor read_tensor(Reader& r) {
  const auto slot = r.number<Slot>();
  const auto dtype = r.number<at::ScalarType>();
  auto sizes = r.numbers<int64_t>();
  return {slot, dtype, std::move(sizes), r.numbers<int64_t>()};
}

}  // namespace

std::optional<std::string> HostProgram::to_bytes() const try {
  Writer w;
  w.list(kernels_, [&](const Kernel& k) {
    w.text(*k.image), w.list(k.imports, [&](const auto& i) { w.text(i.first), w.number(i.second); }), w.numbers(k.args),
        w.numbers(k.values), w.number<int32_t>(k.threads), w.number<int32_t>(k.core_position), w.number<uint8_t>(k.beside),
        w.number(k.elements);
  });
  w.list(atens_, [&](const Aten& a) {
    w.text(a.op.schema().name()), w.text(a.op.schema().overload_name());
    w.list(a.arguments, [&](const c10::IValue& value) { write(w, value); });
    w.list(a.tensors, [&](const auto& t) { w.numbers(t.first), write(w, t.second); });
    w.list(a.results, [&](const SlotTensor& t) { write(w, t); });
    w.number<uint8_t>(a.packs);
  });
  w.list(steps_, [&](const Step& s) { w.number<uint8_t>(s.is_kernel), w.number(s.index), w.numbers(s.releases); });
  w.list(constants_, [&](const std::string& c) { w.text(c); });
  w.numbers(inputs), w.numbers(written);
  w.list(outputs, [&](const auto& o) { w.number(o.first), w.number(o.second); });
  w.list(taken, [&](const auto& t) { w.number(t.first), w.number(t.second); });
  w.list(adopted, [&](const auto& o) { w.number(o.first), w.number(o.second); });
  w.number(made), w.numbers(floats), w.numbers(ints), w.numbers(lifted);
  w.numbers(sizes), w.numbers(moved), w.list(temporaries, [&](const auto& t) { w.number(t.first), w.number(t.second); });
  w.numbers(storage_sizes), w.number(arena), w.number(kernels), w.number(bytes_moved);
  w.list(fallbacks, [&](const auto& f) { w.text(f.first), w.number(f.second); });
  w.list(description, [&](const std::string& line) { w.text(line); });
  return std::move(w.bytes);
} catch (const Unwritable&) {
  return std::nullopt;
}

std::shared_ptr<HostProgram> HostProgram::read_from(std::string_view bytes) try {
  Reader r(bytes);
  auto program = std::make_shared<HostProgram>();
  std::vector<Kernel> read;
  for (size_t n = r.count(); n > 0; n--) {
    Kernel k;
    k.image = std::make_shared<const std::string>(r.text());
    for (size_t m = r.count(); m > 0; m--) {
      std::string name = r.text();
      k.imports.emplace_back(std::move(name), r.number<uint64_t>());
    }
    k.args = r.numbers<Slot>(), k.values = r.numbers<int64_t>();
    k.threads = r.number<int32_t>(), k.core_position = r.number<int32_t>(), k.beside = r.number<uint8_t>() != 0;
    k.elements = r.number<int64_t>();
    read.push_back(std::move(k));
  }
  std::vector<Aten> atens;
  for (size_t n = r.count(); n > 0; n--) {
    const std::string name = r.text(), overload = r.text();
    std::vector<c10::IValue> arguments;
    for (size_t m = r.count(); m > 0; m--) arguments.push_back(read_value(r));
    std::vector<std::pair<std::vector<int>, SlotTensor>> tensors;
    for (size_t m = r.count(); m > 0; m--) {
      auto path = r.numbers<int>();
      tensors.emplace_back(std::move(path), read_tensor(r));
    }
    std::vector<SlotTensor> results;
    for (size_t m = r.count(); m > 0; m--) results.push_back(read_tensor(r));
    const bool packs = r.number<uint8_t>() != 0;
    atens.push_back(make_aten(name, overload, std::move(arguments), std::move(tensors), std::move(results), packs));
  }
  std::vector<Step> steps;
  for (size_t n = r.count(); n > 0; n--) {
    const bool is_kernel = r.number<uint8_t>() != 0;
    const auto index = r.number<uint32_t>();
    if (index >= (is_kernel ? read.size() : atens.size())) throw Damaged("a step");
    steps.push_back({is_kernel, index, r.numbers<uint32_t>()});
  }
  for (size_t n = r.count(); n > 0; n--) program->add_constant(r.text());
  program->inputs = r.numbers<uint32_t>(), program->written = r.numbers<uint32_t>();
  for (size_t n = r.count(); n > 0; n--) {
    const auto storage = r.number<uint32_t>();
    program->outputs.emplace_back(storage, r.number<int64_t>());
  }
  for (size_t n = r.count(); n > 0; n--) {
    const auto input = r.number<uint32_t>();
    program->taken.emplace_back(input, r.number<int64_t>());
  }
  for (size_t n = r.count(); n > 0; n--) {
    const auto storage = r.number<uint32_t>();
    program->adopted.emplace_back(storage, r.number<uint32_t>());
  }
  program->made = r.number<uint32_t>();
  program->floats = r.numbers<uint32_t>(), program->ints = r.numbers<uint32_t>(), program->lifted = r.numbers<uint32_t>();
  program->sizes = r.numbers<int64_t>(), program->moved = r.numbers<int64_t>();
  for (size_t n = r.count(); n > 0; n--) {
    const auto block = r.number<uint32_t>();
    program->temporaries.emplace_back(block, r.number<int64_t>());
  }
  program->storage_sizes = r.numbers<int64_t>();
  program->arena = r.number<int64_t>(), program->kernels = r.number<int64_t>(), program->bytes_moved = r.number<int64_t>();
  for (size_t n = r.count(); n > 0; n--) {
    const std::string name = r.text();
    program->fallbacks[name] = r.number<int64_t>();
  }
  for (size_t n = r.count(); n > 0; n--) program->description.push_back(r.text());
  r.end();
  program->kernels_ = std::move(read), program->atens_ = std::move(atens), program->steps_ = std::move(steps);
  program->load_images();
  return program;
} catch (const Damaged&) {
  return nullptr;
} catch (const UnknownSymbol&) {
  return nullptr;  // it was made on a system with other libraries
}

}  // namespace tiny
