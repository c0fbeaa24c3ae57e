#include "sizes/sizes.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <unordered_map>

#include "flush/repeats.h"
#include "programs/plain_data.h"
#include "sizes/size_marks.h"

namespace tiny {
namespace {

// The beginning of a trace: so many nodes, and what they use.
struct Used {
  uint32_t nodes, regions = 0, numbers = 0, values = 0, storages = 0;

  static Used all_of(const Trace& trace) {
    auto count = [](const auto& list) { return static_cast<uint32_t>(list.size()); };
    return {count(trace.nodes), count(trace.regions), count(trace.numbers), count(trace.values), count(trace.storages)};
  }
  static Used of(const Trace& trace, uint32_t nodes) {
    Used used{nodes};
    for (uint32_t r = 0; r < trace.nodes[nodes - 1].end; r++) {
      const ArgRef& ref = trace.refs[r];
      if (ref.kind == ArgRef::Kind::Number) used.numbers = std::max(used.numbers, ref.index + 1);
      if (ref.kind == ArgRef::Kind::Value) used.values = std::max(used.values, ref.index + 1);
      if (ref.kind != ArgRef::Kind::Region) continue;
      used.regions = std::max(used.regions, ref.index + 1);
      used.storages = std::max(used.storages, static_cast<uint32_t>(trace.regions[ref.index].storage) + 1);
    }
    return used;
  }
};

Used used_of(const Trace& trace, const std::optional<Repeats>& repeats) {
  return repeats ? Used::of(trace, repeats->first + 2 * repeats->period) : Used::all_of(trace);
}

// Sizes that broadcast, and those that leave nothing to compute, are no sizes like others.
uint64_t kind_of(int64_t size) { return size < 2 ? static_cast<uint64_t>(size) : 2; }

void add_value(Integers& integers, const c10::IValue& value) {
  Hash& hash = integers.structure;
  if (value.isInt()) {
    hash.add(uint64_t{1});
    integers.values.push_back(value.toInt());
  } else if (value.isIntList()) {
    const std::vector<int64_t> numbers = value.toIntVector();
    hash.add(2 + (numbers.size() << 8));
    integers.values.insert(integers.values.end(), numbers.begin(), numbers.end());
  } else if (value.isBool()) {
    hash.add(value.toBool() ? uint64_t{3} : uint64_t{4});
  } else if (value.isNone()) {
    hash.add(uint64_t{5});
  } else {
    std::ostringstream text;
    text.precision(17);
    text << value.tagKind() << value;
    hash.add(text.str());
  }
}

// For people: what the integer at a position of a trace is.
std::string name_of(const Trace& trace, uint32_t position) {
  const std::optional<Repeats> repeats = repeats_of(trace);
  const Used used = used_of(trace, repeats);
  uint32_t first = 0;
  for (size_t r = 0; r < used.regions; r++) {
    const Region& region = trace.regions[r];
    const uint32_t within = position - first;
    first += 2 * region.ndim + 1;
    if (position >= first) continue;
    std::ostringstream text;
    if (within < region.ndim) {
      text << "dimension " << within << " of ";
    } else {
      text << (within < 2 * region.ndim ? "a stride of " : "the offset of ");
    }
    text << c10::toString(region.dtype) << c10::IntArrayRef(&trace.ints[region.shape], region.ndim);
    for (const Node& node : trace.nodes)
      for (uint32_t ref = node.args; ref < node.end; ref++)
        if (trace.refs[ref].kind == ArgRef::Kind::Region && trace.refs[ref].index == r)
          return text.str() + (ref < node.outs ? " for " : " from ") + node.op->name;
    return text.str();
  }
  if (position < first + used.numbers) return "a number";
  return repeats ? "the number of steps" : "an argument";
}

// A variable before another one is taken off, if it is a whole number.
std::optional<int64_t> counted(const SizedProgram::Variable& variable, const std::vector<int64_t>& values) {
  const int64_t value = values[variable.position];
  const int64_t stride = variable.stride < 0 ? variable.unit : values[variable.stride];
  if (stride < 1 || value % stride != variable.rest) return std::nullopt;
  return value / stride;
}

void write(Writer& w, const Polynomial& p) { w.numbers(p.terms), w.number(p.divisor); }

Polynomial read_polynomial(Reader& r) {
  auto terms = r.numbers<Polynomial::Term>();
  return {std::move(terms), r.number<int64_t>()};
}

}  // namespace

Integers Integers::of(const Trace& trace) {
  Integers integers;
  Hash& hash = integers.structure;
  auto& values = integers.values;
  values.reserve(trace.ints.size() + trace.regions.size() + trace.numbers.size() + trace.storages.size() + 16);
  hash.add(static_cast<uint64_t>(trace.device));
  const std::optional<Repeats> repeats = repeats_of(trace);
  const Used used = used_of(trace, repeats);
  for (uint32_t n = 0; n < used.nodes; n++) {
    const Node& node = trace.nodes[n];
    hash.add(node.op->hash.a);
    hash.add((uint64_t{node.outs - node.args} << 32) | ((node.writes - node.outs) << 16) | (node.end - node.writes));
    for (uint32_t r = node.args; r < node.end; r++) {
      const ArgRef& ref = trace.refs[r];
      uint64_t what = static_cast<uint64_t>(ref.kind) | (static_cast<uint64_t>(ref.dtype) << 8) | (uint64_t{ref.wrapped} << 16);
      // A region that is changed was an argument already: which one is part of the structure.
      if (ref.kind == ArgRef::Kind::List || r >= node.writes) what |= uint64_t{ref.index} << 32;
      hash.add(what);
    }
  }
  for (uint32_t r = 0; r < used.regions; r++) {
    const Region& region = trace.regions[r];
    hash.add(static_cast<uint64_t>(region.storage) | (static_cast<uint64_t>(region.dtype) << 32) | (uint64_t{region.ndim} << 48));
    uint64_t kinds = 1;
    for (uint32_t d = 0; d < region.ndim; d++) {
      kinds = kinds * 3 + kind_of(trace.ints[region.shape + d]);
      integers.sizes.add(static_cast<uint64_t>(trace.ints[region.shape + d]));
      integers.sizes.add(static_cast<uint64_t>(trace.ints[region.shape + region.ndim + d]));
      if (is_marked(trace.storages[region.storage].get(), trace.ints[region.shape + d], false))
        hash.add(static_cast<uint64_t>(trace.ints[region.shape + d]));
    }
    hash.add(2 * kinds + (region.offset == 0));
    values.insert(values.end(), trace.ints.begin() + region.shape, trace.ints.begin() + region.shape + 2 * region.ndim);
    values.push_back(region.offset);
  }
  for (uint32_t n = 0; n < used.numbers; n++) {
    hash.add(uint64_t{trace.numbers[n].is_float});
    values.push_back(trace.numbers[n].i);
  }
  for (uint32_t v = 0; v < used.values; v++) add_value(integers, trace.values[v]);
  for (uint32_t s = 0; s < used.storages; s++) {
    hash.add(uint64_t{trace.live[s]} | (uint64_t{trace.storages[s]->buffer != nullptr} << 1));
    values.push_back(static_cast<int64_t>(trace.storages[s]->nbytes));
  }
  const Repeats loop = repeats.value_or(Repeats());
  for (const uint32_t number : {loop.first, loop.period, loop.count}) values.push_back(number);
  hash.add(uint64_t{loop.first} << 32 | loop.period);
  integers.sizes.add(uint64_t{loop.count});
  for (const bool changes : loop.changing) hash.add(uint64_t{changes});
  return integers;
}

int64_t Polynomial::at(const std::vector<int64_t>& variables) const {
  int64_t sum = 0;
  for (const Term& term : terms) {
    int64_t product = term.factor;
    for (size_t v = 0; v < variables.size(); v++)
      for (uint8_t i = 0; i < term.powers[v]; i++) product *= variables[v];
    sum += product;
  }
  return divisor == 1 ? sum : sum / divisor;
}

std::vector<int64_t> SizedProgram::variables_of(const std::vector<int64_t>& values) const {
  std::vector<int64_t> found;
  for (const Variable& variable : variables) {
    const std::optional<int64_t> whole = counted(variable, values);
    std::optional<int64_t> part = variable.less < 0 ? 0 : counted(variables[variable.less], values);
    for (const Form& form : used)
      if (form.position == found.size()) part = form.value.at(found);
    if (!whole || !part || *whole - *part < variable.low || *whole - *part > variable.high) break;
    found.push_back(*whole - *part);
  }
  return found;
}

std::optional<std::vector<int64_t>> SizedProgram::match(const std::vector<int64_t>& values) const {
  if (values.size() != constants.size()) return std::nullopt;
  const std::vector<int64_t> found = variables_of(values);
  if (found.size() < variables.size()) return std::nullopt;
  auto form = integers.begin();
  auto any = free.begin();
  for (uint32_t i = 0; i < values.size(); i++) {
    if (form != integers.end() && form->position == i) {
      if (values[i] != (form++)->value.at(found)) return std::nullopt;
    } else if (any != free.end() && *any == i) {
      ++any;
    } else if (values[i] != constants[i]) {
      return std::nullopt;
    }
  }
  return found;
}

std::shared_ptr<HostProgram> SizedProgram::at(const std::vector<int64_t>& variables) const {
  auto filled_in = std::make_shared<HostProgram>(*program);
  auto form = filled.begin();
  uint32_t position = 0;
  filled_in->each_integer([&](int64_t& value) {
    if (form != filled.end() && form->position == position) value = (form++)->value.at(variables);
    position++;
  });
  for (const Fraction& fraction : fractions) {
    double value = fraction.factor;
    for (const auto& [polynomial, power] : fraction.powers) {
      const auto base = static_cast<double>(polynomial.at(variables));
      value = power == -1 ? value / base : value * std::pow(base, power);
    }
    std::memcpy(&filled_in->sizes[fraction.position], &value, sizeof(value));
  }
  if (repeats) {
    // Numbers of a loop: as many as it has steps.
    const auto last = static_cast<uint32_t>(constants.size() - 1);
    const bool varies = !integers.empty() && integers.back().position == last;
    const int64_t count = varies ? integers.back().value.at(variables) : constants.back();
    auto positions = [&](const std::vector<Run>& runs) {
      std::vector<uint32_t> all;
      for (const Run& run : runs)
        for (int64_t i = 0; i < run.length + (run.counted ? count : 0); i++) all.push_back(static_cast<uint32_t>(run.start + i * run.step));
      return all;
    };
    filled_in->floats = positions(floats), filled_in->ints = positions(ints);
    auto& lifted = filled_in->lifted;
    lifted = filled_in->floats;
    lifted.insert(lifted.end(), filled_in->ints.begin(), filled_in->ints.end());
    std::sort(lifted.begin(), lifted.end());
    lifted.erase(std::unique(lifted.begin(), lifted.end()), lifted.end());
  }
  filled_in->settle();
  return filled_in;
}

std::string SizedProgram::describe(const Trace& trace) const {
  std::ostringstream text;
  for (const Variable& variable : variables) {
    text << (text.tellp() > 0 ? "; " : "") << name_of(trace, variable.position);
    if (variable.stride >= 0) text << ", in " << name_of(trace, variable.stride) << ',';
    if (variable.less >= 0) text << " less " << name_of(trace, variables[variable.less].position);
    for (const Form& form : used)
      if (&variables[form.position] == &variable) text << " less what is used of it";
    text << " is anything from " << variable.low << " to " << variable.high;
  }
  return text.str();
}

std::string SizedProgram::why_not(const Trace& trace, const std::vector<int64_t>& values) const {
  const std::vector<int64_t> found = variables_of(values);
  if (found.size() < variables.size()) {
    const Variable& variable = variables[found.size()];
    const std::string whole = name_of(trace, variable.position);
    if (variable.stride >= 0 || variable.less >= 0) return c10::str(whole, " is ", values[variable.position], ", which is out of range");
    return c10::str(whole, " is ", values[variable.position], ", not from ", variable.low, " to ", variable.high);
  }
  std::vector<int64_t> expected = constants;
  for (const Form& form : integers) expected[form.position] = form.value.at(found);
  for (const uint32_t position : free) expected[position] = values[position];
  for (uint32_t i = 0; i < values.size(); i++)
    if (values[i] != expected[i]) return c10::str(name_of(trace, i), " is ", values[i], " and would be ", expected[i]);
  return "nothing";
}

std::optional<std::string> SizedProgram::to_bytes() const {
  const std::optional<std::string> bytes = program->to_bytes();
  if (!bytes) return std::nullopt;
  Writer w;
  w.text(*bytes), w.numbers(constants), w.numbers(free), w.numbers(variables);
  for (const auto& forms : {used, integers, filled}) w.list(forms, [&](const Form& f) { w.number(f.position), write(w, f.value); });
  w.list(fractions, [&](const Fraction& f) {
    w.number(f.position), w.number(f.factor);
    w.list(f.powers, [&](const auto& power) { write(w, power.first), w.number(power.second); });
  });
  w.number(uint8_t{repeats}), w.numbers(floats), w.numbers(ints);
  return std::move(w.bytes);
}

std::shared_ptr<SizedProgram> SizedProgram::read_from(std::string_view bytes) try {
  Reader r(bytes);
  auto sized = std::make_shared<SizedProgram>();
  sized->program = HostProgram::read_from(r.view());
  if (sized->program == nullptr) return nullptr;
  sized->constants = r.numbers<int64_t>(), sized->free = r.numbers<uint32_t>(), sized->variables = r.numbers<Variable>();
  for (auto* forms : {&sized->used, &sized->integers, &sized->filled})
    for (size_t n = r.count(); n > 0; n--) {
      const auto position = r.number<uint32_t>();
      forms->push_back({position, read_polynomial(r)});
    }
  for (size_t n = r.count(); n > 0; n--) {
    const auto position = r.number<uint32_t>();
    sized->fractions.push_back({position, r.number<double>(), {}});
    for (size_t m = r.count(); m > 0; m--) {
      Polynomial base = read_polynomial(r);
      sized->fractions.back().powers.emplace_back(std::move(base), r.number<double>());
    }
  }
  sized->repeats = r.number<uint8_t>() != 0, sized->floats = r.numbers<Run>(), sized->ints = r.numbers<Run>();
  r.end();
  return sized;
} catch (const Damaged&) {
  return nullptr;
}

bool& sizes_vary() {
  static bool vary = [] {
    const char* text = std::getenv("TORCH_TINY_SIZES");
    return text == nullptr || std::string_view(text) != "0";
  }();
  return vary;
}

}  // namespace tiny
