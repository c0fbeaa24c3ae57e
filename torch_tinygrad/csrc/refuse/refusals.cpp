#include "refuse/refusals.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/all.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/one_hot_native.h>
#include <ATen/ops/sum.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <limits>
#include <string_view>
#include <unordered_map>

#include "infer/infer.h"
#include "record/assertions.h"
#include "record/copy.h"
#include "record/recorder.h"
#include "record/rule_name.h"
#include "refuse/divisors.h"
#include "refuse/indices.h"

namespace tiny {
namespace {

at::Tensor one_hot(const at::Tensor& self, int64_t classes) {
  const int64_t most = classes == -1 ? Range::kMost : classes - 1;
  if (self.scalar_type() == at::kLong && self.numel() > 0 && !values_within(self, 0, most)) at::one_hot(self.to(at::kCPU), classes);
  return at::native::one_hot(self, classes);
}

// Whether probabilities are finite, none is negative, and each row has some.
bool are_probabilities(const at::Tensor& self) {
  DeviceLock lock;
  const at::Tensor values = on_host(self, "the values of probabilities");
  const auto [least, most] = at::aminmax(values);
  return least.item().toDouble() >= 0 && most.item().toDouble() < std::numeric_limits<double>::infinity() &&
         at::sum(values, {-1}).min().item().toDouble() > 0;
}

void check_probabilities(const at::Tensor& self, int64_t count, bool replacement) {
  if (self.is_floating_point() && self.dim() > 0 && self.numel() > 0 && !are_probabilities(self))
    at::multinomial(self.to(at::kCPU), count, replacement, at::detail::createCPUGenerator());
}

at::Tensor multinomial(const at::Tensor& self, int64_t count, bool replacement, std::optional<at::Generator> generator) {
  check_probabilities(self, count, replacement);
  torch::jit::Stack stack;
  torch::jit::push(stack, self, count, replacement, generator);
  record_op("aten::multinomial", "", stack);
  return stack[0].toTensor();
}

at::Tensor& multinomial_out(const at::Tensor& self, int64_t count, bool replacement, std::optional<at::Generator> generator,
                            at::Tensor& out) {
  check_probabilities(self, count, replacement);
  torch::jit::Stack stack;
  torch::jit::push(stack, self, count, replacement, generator, out);
  record_op("aten::multinomial", "out", stack);
  return out;
}

// Segments' axes are counted from the front from here on: PyTorch's Meta kernels take no others.
void record_with_axis(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto argument = [&](const char* name) -> c10::IValue& {
    return torch::jit::peek(*stack, op.schema().argumentIndexWithName(name).value(), op.schema().arguments().size());
  };
  argument("axis") = at::maybe_wrap_dim(argument("axis").toInt(), argument("data").toTensor().dim());
  record(op, stack);
}

// Whether all values are from `least` to `most`; what is no number is not.
bool are_within(const at::Tensor& tensor, double least, double most) {
  if (tensor.numel() == 0) return true;
  DeviceLock lock;
  const auto [low, high] = at::aminmax(on_host(tensor, "values that an operator may refuse"));
  return low.item().toDouble() >= least && high.item().toDouble() <= most;
}

int64_t count_ones(const at::Tensor& mask) {
  DeviceLock lock;
  return at::count_nonzero(on_host(mask, "the count of a mask's ones")).item().toLong();
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// (probabilities), (self, a number) or (self, probabilities)
void check_probability(const Call& call, c10::ArrayRef<c10::IValue> args) {
  if (args[1].isDouble()) return;
  const at::Tensor& given = (args[1].isTensor() ? args[1] : args[0]).toTensor();
  if (given.is_floating_point() && !are_within(given, 0, 1)) ask_cpu(call, args, given);
}

// (mean, deviation)
void check_deviation(const Call& call, c10::ArrayRef<c10::IValue> args) {
  if (!args[1].isTensor() || args[1].toTensor().is_complex()) return;
  if (!are_within(args[1].toTensor(), 0, kInfinity)) ask_cpu(call, args, args[1].toTensor());
}

// (self, mask, source): an element for each one of the mask.
void check_masked_scatter(const Call& call, c10::ArrayRef<c10::IValue> args) {
  const at::Tensor &self = args[0].toTensor(), &mask = args[1].toTensor(), &source = args[2].toTensor();
  const int64_t numel = c10::multiply_integers(at::infer_size(self.sizes(), mask.sizes()));
  if (numel <= source.numel()) return;
  if (count_ones(mask) * (numel / std::max<int64_t>(mask.numel(), 1)) > source.numel()) ask_cpu(call, args, mask);
}

// (self, bins, min, max): equal ends are the values' own.
void check_histogram(const Call& call, c10::ArrayRef<c10::IValue> args) {
  const bool finds_ends = args.size() > 3 && args[2].toScalar().toDouble() == args[3].toScalar().toDouble();
  constexpr double most = std::numeric_limits<double>::max();
  if (finds_ends && !are_within(args[0].toTensor(), -most, most)) ask_cpu(call, args, args[0].toTensor());
}

// (weight, indices, offsets): bags begin with the first index, and end at the last.
void check_bags(const Call& call, c10::ArrayRef<c10::IValue> args) {
  const at::Tensor &indices = args[1].toTensor(), &offsets = args[2].toTensor();
  if (!is_tiny(offsets) || offsets.numel() == 0 || offsets.dim() != 1 || !c10::isIntegralType(offsets.scalar_type(), false)) return;
  DeviceLock lock;
  const at::Tensor values = on_host(offsets, "where bags begin");
  const int64_t count = values.numel();
  const bool rises = count < 2 || at::all(at::ge(values.slice(0, 1), values.slice(0, 0, count - 1))).item().toBool();
  if (!rises || values[0].item().toLong() != 0 || values[count - 1].item().toLong() > indices.numel())
    ask_cpu(call, args, {indices, offsets});
}

// (data, reduce, lengths, indices, offsets, axis, unsafe): lengths of segments add up to the data.
void check_segments(const Call& call, c10::ArrayRef<c10::IValue> args) {
  if (args.size() < 7 || !args[2].isTensor() || !args[2].toTensor().defined() || !is_tiny(args[2].toTensor()) || args[6].toBool()) return;
  const at::Tensor &data = args[0].toTensor(), &lengths = args[2].toTensor();
  DeviceLock lock;
  const at::Tensor values = on_host(lengths, "the lengths of segments");
  const bool fits = values.numel() > 0 && at::all(at::ge(values, 0)).item().toBool() &&
                    at::all(at::eq(at::sum(values, {-1}), data.size(args[5].toInt()))).item().toBool();
  if (!fits) ask_cpu(call, args, lengths);
}

// (self, exponent): whole numbers have no reciprocals.
void check_power(const Call& call, c10::ArrayRef<c10::IValue> args) {
  if (!args[0].isTensor() || !args[1].isInt() || args[1].toInt() >= 0) return;
  if (c10::isIntegralType(args[0].toTensor().scalar_type(), /*includeBool=*/true)) ask_cpu(call, args, {});
}

// (self, indices, values), where an index is a mask: values broadcast to what it selects.
void check_mask_values(const Call& call, c10::ArrayRef<c10::IValue> args) {
  if (!call.masked) return;
  const at::Tensor &self = args[0].toTensor(), &values = args[2].toTensor();
  int64_t at = 0;
  at::Tensor mask;
  for (const auto& index : args[1].toListRef()) {
    if (index.isTensor() && index.toTensor().defined()) {
      mask = index.toTensor();
      break;
    }
    at++;
  }
  const int64_t after = self.dim() - at - mask.dim(), dims = at + 1 + after;
  bool fits = mask.scalar_type() == at::kBool;   // bytes are refused where a single value is given
  for (int64_t d = 1; d <= values.dim(); d++) {  // from the last dimension on
    const int64_t given = values.size(values.dim() - d);
    if (given == 1) continue;
    const int64_t place = dims - d;
    const int64_t wanted = place < 0 ? 1 : place < at ? self.size(place) : place > at ? self.size(self.dim() - d) : count_ones(mask);
    fits &= given == wanted;
  }
  if (!fits) ask_cpu(call, args, mask);
}

// (self, target): probabilities of either kind.
void check_cross_entropy(const Call&, c10::ArrayRef<c10::IValue> args) {
  assert_within(args[0].toTensor(), 0, 1, "all elements of input should be between 0 and 1");
  assert_within(args[1].toTensor(), 0, 1, "all elements of target should be between 0 and 1");
}

// div has whole quotients with a rounding mode alone.
void check_quotient(const Call& call, c10::ArrayRef<c10::IValue> args) {
  if (args.size() > 2 && args[2].isString()) check_divisor(call, args);
}

// Operator, without its overload and without the mark of writing in place → the look at its values.
const std::unordered_map<std::string_view, ValueCheck>& table() {
  static const auto* rows = new std::unordered_map<std::string_view, ValueCheck>{
      {"floor_divide", check_divisor},
      {"remainder", check_divisor},
      {"fmod", check_divisor},
      {"div", check_quotient},
      {"pow", check_power},
      {"bernoulli", check_probability},
      {"normal", check_deviation},
      {"masked_scatter", check_masked_scatter},
      {"histc", check_histogram},
      {"binary_cross_entropy", check_cross_entropy},
      {"_embedding_bag", check_bags},
      {"_embedding_bag_forward_only", check_bags},
      {"segment_reduce", check_segments},
      {"index_put", check_mask_values},
      {"_index_put_impl", check_mask_values},
  };
  return *rows;
}

}  // namespace

ValueCheck value_check(const c10::FunctionSchema& schema) {
  const auto found = table().find(rule_name(schema));
  return found == table().end() ? nullptr : found->second;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("one_hot", one_hot);
  for (const char* name : {"segment_reduce", "_segment_reduce_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&record_with_axis>());
  m.impl("multinomial", multinomial);
  m.impl("multinomial.out", multinomial_out);
}

}  // namespace tiny
