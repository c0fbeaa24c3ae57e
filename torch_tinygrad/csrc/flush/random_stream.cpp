#include "flush/random_stream.h"

#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>

#include "flush/random_numbers.h"
#include "record/rule_name.h"

namespace tiny {
namespace {

using at::Tensor;

// The arguments of a call by name, and where its results go.
struct Draw {
  const c10::FunctionSchema& schema;
  const torch::jit::Stack& args;
  const std::vector<Tensor>& results;
  Stream stream;

  const c10::IValue* find(const char* name) const {
    for (size_t i = 0; i < args.size(); i++)
      if (schema.arguments()[i].name() == name) return &args[i];
    return nullptr;
  }
  const c10::IValue& operator[](const char* name) const {
    const c10::IValue* value = find(name);
    TORCH_INTERNAL_ASSERT(value != nullptr, schema.name(), " has no argument ", name);
    return *value;
  }
  double number(const char* name) const { return (*this)[name].toScalar().toDouble(); }
  bool has(const char* name) const {
    const c10::IValue* value = find(name);
    return value != nullptr && !value->isNone();
  }
  at::ScalarType dtype() const { return results[0].scalar_type(); }
  bool is_double() const { return dtype() == at::kDouble; }
  Tensor fresh(at::ScalarType type) const { return at::empty(results[0].sizes(), at::TensorOptions().dtype(type)); }
  void give(const Tensor& values, size_t result = 0) const { results[result].copy_(values); }

  // Elements of the result's precision (half types in single), from a word each.
  template <class F>
  void each_real(const F& f) {
    const Tensor values = fresh(is_double() ? at::kDouble : at::kFloat);
    if (is_double()) {
      fill<double>(stream, values, [&](uint64_t word) { return f(word, double{}); });
    } else {
      fill<float>(stream, values, [&](uint64_t word) { return f(word, float{}); });
    }
    give(values);
  }
  Tensor normal_numbers() {
    const Tensor values = fresh(is_double() ? at::kDouble : at::kFloat);
    is_double() ? gaussian<double>(stream, values) : gaussian<float>(stream, values);
    return values;
  }
  // mean + deviation * normal, each a number or a tensor.
  Tensor normal() {
    Tensor values = normal_numbers();
    const c10::IValue &mean = (*this)["mean"], &deviation = (*this)["std"];
    deviation.isTensor() ? values.mul_(deviation.toTensor()) : values.mul_(deviation.toScalar());
    mean.isTensor() ? values.add_(mean.toTensor()) : values.add_(mean.toScalar());
    return values;
  }
  void draw_integers(int64_t low, uint64_t span) {
    const Tensor values = fresh(at::kLong);
    integers(stream, values, low, span);
    give(values);
  }
};

// As a value of the dtype holds it.
template <class T>
T rounded(T value, at::ScalarType dtype) {
  if (dtype == at::kHalf) return static_cast<T>(static_cast<at::Half>(static_cast<float>(value)));
  if (dtype == at::kBFloat16) return static_cast<T>(static_cast<at::BFloat16>(static_cast<float>(value)));
  return value;
}

// What would round up to the bound that is left out is the other bound, whose share is the smaller for rounding.
void uniform(Draw& d) {
  const double from = d.number("from"), to = d.number("to");
  const at::ScalarType dtype = d.dtype();
  d.each_real([&](uint64_t word, auto zero) {
    using T = decltype(zero);
    const T low = static_cast<T>(from), high = static_cast<T>(to);
    const T value = low + unit<T>(word, dtype) * (high - low);
    return rounded(value, dtype) == rounded(high, dtype) ? low : value;
  });
}

void unit_numbers(Draw& d) {
  const at::ScalarType dtype = d.dtype();
  d.each_real([&](uint64_t word, auto zero) { return unit<decltype(zero)>(word, dtype); });
}

void exponential(Draw& d) {
  const double rate = d.number("lambd");
  d.each_real([&](uint64_t word, auto zero) {
    using T = decltype(zero);
    return -std::log(open_unit<T>(word)) / static_cast<T>(rate);
  });
}

void geometric(Draw& d) {
  const double p = d.number("p");
  d.each_real([&](uint64_t word, auto zero) {
    using T = decltype(zero);
    return std::max(std::ceil(std::log(open_unit<T>(word)) / std::log1p(-static_cast<T>(p))), T(1));
  });
}

void cauchy(Draw& d) {
  const double median = d.number("median"), sigma = d.number("sigma");
  d.each_real([&](uint64_t word, auto zero) {
    using T = decltype(zero);
    const T turn = open_unit<T>(word) - T(0.5);
    return static_cast<T>(median) + static_cast<T>(sigma) * (sin_pi(turn) / sin_pi(turn + T(0.5)));
  });
}

// True with probability p, a number or a tensor of the result's shape.
Tensor chosen(Draw& d, const c10::IValue& p) {
  const bool is_double = p.isTensor() && p.toTensor().scalar_type() == at::kDouble && p.toTensor().dim() > 0;
  const Tensor values = d.fresh(is_double ? at::kDouble : at::kFloat);
  if (is_double) {
    fill<double>(d.stream, values, [](uint64_t word) { return unit<double>(word, at::kDouble); });
  } else {
    fill<float>(d.stream, values, [](uint64_t word) { return unit<float>(word, at::kFloat); });
  }
  if (!p.isTensor()) return values.lt(static_cast<float>(p.toScalar().toDouble()));
  return values.lt(p.toTensor().to(values.scalar_type()));
}

void bernoulli(Draw& d) { d.give(chosen(d, d.find("p") != nullptr ? d["p"] : d["self"])); }

void randint(Draw& d) {
  const c10::IValue& high = d["high"];
  if (high.isTensor()) {
    const uint64_t span = static_cast<uint64_t>(high.toTensor().item().toLong());
    const Tensor values = d.fresh(at::kLong);
    fill<int64_t>(d.stream, values, [=](uint64_t word) { return static_cast<int64_t>(word % span); });
    return d.give(values);
  }
  const int64_t low = d.has("low") ? d["low"].toInt() : 0;
  d.draw_integers(low, static_cast<uint64_t>(high.toInt()) - static_cast<uint64_t>(low));
}

void random_integers(Draw& d) {
  const int64_t low = d.has("from") ? d["from"].toInt() : 0;
  const uint64_t high = d.has("to") ? static_cast<uint64_t>(d["to"].toInt()) : every_value(d.dtype());
  // Without an upper bound, numbers from `low` on reach to the end of int64; the whole of it has 2**64 values.
  d.draw_integers(low, high - static_cast<uint64_t>(low));
}

void dropout(Draw& d) {
  const Tensor& input = d["input"].toTensor();
  const double p = d.number("p");
  const bool trains = !d.has("train") || d["train"].toBool();
  if (!trains || p == 0) {
    d.give(input);
    d.results[1].fill_(true);
    return;
  }
  const auto wide = d.is_double() ? at::kDouble : at::kFloat;
  if (p == 1) {
    d.give(input.to(wide).mul(0));
    d.results[1].fill_(false);
    return;
  }
  const Tensor kept = chosen(d, p).logical_not_();
  d.give(input.to(wide).mul(kept).mul_(1.0 / (1.0 - p)));
  d.give(kept, 1);
}

void rrelu(Draw& d) {
  const Tensor &input = d["self"].toTensor(), &noise = d["noise"].toTensor();
  const double lower = d.number("lower"), upper = d.number("upper");
  const auto wide = d.is_double() ? at::kDouble : at::kFloat;
  const Tensor x = input.to(wide);
  // The result comes first in every form; the noise is written by some and returned by others.
  const bool returns_noise = d.results.size() > 1;
  if (!d["training"].toBool()) {
    d.give(at::where(x.lt(0), x.mul((lower + upper) / 2), x));
    if (returns_noise) d.give(noise, 1);
    return;
  }
  const Tensor slope = d.fresh(wide);
  if (d.is_double()) {
    fill<double>(d.stream, slope, [=](uint64_t word) { return lower + unit<double>(word, at::kDouble) * (upper - lower); });
  } else {
    const float low = static_cast<float>(lower), span = static_cast<float>(upper - lower);
    fill<float>(d.stream, slope, [=](uint64_t word) { return low + unit<float>(word, at::kFloat) * span; });
  }
  const Tensor negative = x.le(0);
  d.give(at::where(negative, x.mul(slope), x));
  const Tensor drawn = at::where(negative, slope, 1.0);
  if (returns_noise) d.give(drawn, 1);
}

void multinomial(Draw& d) {
  const Tensor& given = d["self"].toTensor();
  const int64_t samples = d["num_samples"].toInt(), choices = given.size(-1);
  const bool replaces = d["replacement"].toBool();
  const auto wide = given.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor table = given.reshape({-1, choices}).to(wide);
  auto drawn = [&](Stream& stream, at::IntArrayRef sizes, auto double_of, auto float_of) {
    const Tensor values = at::empty(sizes, table.options());
    if (wide == at::kDouble) {
      fill<double>(stream, values, double_of);
    } else {
      fill<float>(stream, values, float_of);
    }
    return values;
  };
  if (samples == 1 || !replaces) {
    const Tensor race = drawn(
        d.stream, table.sizes(), [](uint64_t word) { return -std::log(open_unit<double>(word)); },
        [](uint64_t word) { return -std::log(open_unit<float>(word)); });
    return d.give(std::get<1>(at::topk(table.div(race), samples, 1)).reshape(d.results[0].sizes()));
  }
  const Tensor cumulative = at::cumsum(table, 1), summed = cumulative.narrow(1, choices - 1, 1);
  Stream branch = d.stream.branch();
  Tensor point = drawn(
      branch, {table.size(0), samples}, [](uint64_t word) { return unit<double>(word, at::kDouble); },
      [](uint64_t word) { return unit<float>(word, at::kFloat); });
  point = point.mul(summed);
  point = at::where(point.lt(summed), point, summed.mul(1 - 0x1p-24));
  d.give(at::searchsorted(cumulative, point, false, true).reshape(d.results[0].sizes()));
}

using Function = void (*)(Draw&);

// Operator without its overload and without the mark of writing in place → its stream.
const std::unordered_map<std::string_view, Function>& table() {
  static const auto* functions = new std::unordered_map<std::string_view, Function>{
      {"uniform", uniform},
      {"rand", unit_numbers},
      {"rand_like", unit_numbers},
      {"randn", [](Draw& d) { d.give(d.normal_numbers()); }},
      {"randn_like", [](Draw& d) { d.give(d.normal_numbers()); }},
      {"normal", [](Draw& d) { d.give(d.normal()); }},
      {"normal_functional", [](Draw& d) { d.give(d.normal()); }},
      {"log_normal", [](Draw& d) { d.give(d.normal().exp_()); }},
      {"exponential", exponential},
      {"geometric", geometric},
      {"cauchy", cauchy},
      {"bernoulli", bernoulli},
      {"randint", randint},
      {"randint_like", randint},
      {"random", random_integers},
      {"native_dropout", dropout},
      {"rrelu_with_noise", rrelu},
      {"rrelu_with_noise_functional", rrelu},
      {"randperm",
       [](Draw& d) {
         const Tensor values = d.fresh(at::kLong);
         permutation(d.stream, values);
         d.give(values);
       }},
      {"multinomial", multinomial},
  };
  return *functions;
}

}  // namespace

bool draws(const OpInfo& info) { return info.random && table().count(rule_name(info.op.schema())) > 0; }

void draw(const OpInfo& info, const torch::jit::Stack& args, const std::vector<at::Tensor>& results, int64_t seed, int64_t offset) {
  const c10::FunctionSchema& schema = info.op.schema();
  Draw d{schema, args, results, {static_cast<uint64_t>(seed), static_cast<uint64_t>(offset)}};
  table().at(rule_name(schema))(d);
}

uint64_t seed_for_cpu(int64_t seed, int64_t offset) { return Stream{static_cast<uint64_t>(seed), 0}.word(static_cast<uint64_t>(offset)); }

}  // namespace tiny
