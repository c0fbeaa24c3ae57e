#include "infer/factories.h"

#include <c10/util/strides.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "infer/stand_ins.h"
#include "operators/kernels_only.h"
#include "record/alone.h"

namespace tiny {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

// The number of the argument by this name, or -1.
int argument(const Call& call, const char* name) { return call.info.op.schema().argumentIndexWithName(name).value_or(-1); }

Inferred ask(const Call& call, Arguments args) {
  const Alone alone;
  const KernelsOnly kernels_only;
  torch::jit::Stack stack = with_stand_ins(call, args, {}, c10::Device(c10::kCPU));
  call.info.op.callBoxed(&stack);
  return describe(stack, {}, {});
}

bool overflows(const std::vector<int64_t>& sizes) {
  int64_t bytes = sizeof(c10::complex<double>);
  return std::any_of(sizes.begin(), sizes.end(),
                     [&](int64_t n) { return n < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(n, 1), &bytes); });
}

// Of given sizes: the kernel is asked for no element, which draws no random numbers.
std::optional<Inferred> of_sizes(const Call& call, Arguments args, int position) {
  const bool is_list = args[position].isIntList();
  const std::vector<int64_t> sizes = is_list ? args[position].toIntVector() : std::vector<int64_t>{args[position].toInt()};
  if (overflows(sizes)) return std::nullopt;
  std::vector<c10::IValue> none(args.begin(), args.end());
  none[position] = is_list ? c10::IValue(std::vector<int64_t>(sizes.size(), 0)) : c10::IValue(int64_t{0});
  Inferred inferred = ask(call, none);
  Shape& shape = inferred.returns.at(0).tensors.at(0).shape;
  // Normal numbers that are whole are refused only where there are some.
  if (call.info.random && !at::isFloatingType(shape.dtype) && !at::isComplexType(shape.dtype) &&
      call.info.name.find("randint") == std::string::npos)
    return std::nullopt;
  const auto strides = c10::contiguous_strides(sizes);
  shape.sizes.assign(sizes.begin(), sizes.end());
  shape.strides.assign(strides.begin(), strides.end());
  return inferred;
}

// How many elements there are at most, by the numbers.
double most_elements(const Call& call, Arguments args) {
  const int start = argument(call, "start"), end = argument(call, "end"), step = argument(call, "step");
  auto number = [&](int position, double otherwise) {
    if (position < 0 || !args[position].isScalar()) return otherwise;
    return args[position].isComplexDouble() ? std::abs(args[position].toComplexDouble()) : args[position].toScalar().toDouble();
  };
  if (end >= 0) return std::abs((number(end, HUGE_VAL) - number(start, 0)) / number(step, 1)) + 1;
  double elements = 1;
  for (const auto& value : args) {
    if (value.isInt()) elements *= std::max<double>(static_cast<double>(value.toInt()), 1);
    if (value.isIntList())
      for (int64_t n : value.toIntVector()) elements *= std::max<double>(static_cast<double>(n), 1);
    if (value.isTensor()) return HUGE_VAL;  // an end of a range
  }
  return elements;
}

}  // namespace

std::optional<Inferred> infer_factory(const Call& call, Arguments args) {
  constexpr double kElements = 1 << 24;  // a few milliseconds
  const int size = argument(call, "size"), steps = argument(call, "steps"), format = argument(call, "memory_format");
  if (format >= 0 && !args[format].isNone()) return std::nullopt;
  if (size >= 0 && args[size].isIntList()) return of_sizes(call, args, size);
  if (steps >= 0 && args[steps].isInt() && most_elements(call, args) < HUGE_VAL) return of_sizes(call, args, steps);
  if (call.info.random || call.info.takes_generator || !(most_elements(call, args) <= kElements)) return std::nullopt;
  return ask(call, args);
}

}  // namespace tiny
