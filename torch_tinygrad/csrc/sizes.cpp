#include "sizes.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <unordered_map>

#include "plain_data.h"

namespace tiny {
namespace {

// Traces of a structure that are remembered, and bytes of all of them.
constexpr size_t kMaxSeen = 4, kMaxBytes = size_t{16} << 20;
// Programs of a structure, and structures with programs.
constexpr size_t kMaxPrograms = 4, kMaxFamilies = 256;

auto& families = *new std::unordered_map<Hash, SizeFamily, HashHash>;  // never destroyed, as programs are not
size_t seen_bytes = 0;
uint64_t uses = 0;

size_t bytes_of(const SizeFamily& family) {
  size_t bytes = sizeof(SizeFamily);
  for (const auto& values : family.seen) bytes += values.size() * sizeof(int64_t);
  return bytes;
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
  for (const Node& node : trace.nodes) {
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
  for (const Region& region : trace.regions) {
    hash.add(static_cast<uint64_t>(region.storage) | (static_cast<uint64_t>(region.dtype) << 32) | (uint64_t{region.ndim} << 48));
    uint64_t kinds = 1;
    for (uint32_t d = 0; d < region.ndim; d++) {
      kinds = kinds * 3 + kind_of(trace.ints[region.shape + d]);
      integers.sizes.add(static_cast<uint64_t>(trace.ints[region.shape + d]));
    }
    hash.add(kinds);
    values.insert(values.end(), trace.ints.begin() + region.shape, trace.ints.begin() + region.shape + 2 * region.ndim);
    values.push_back(region.offset);
  }
  for (const Number& number : trace.numbers) {
    hash.add(uint64_t{number.is_float});
    values.push_back(number.i);
  }
  for (const c10::IValue& value : trace.values) add_value(integers, value);
  for (size_t s = 0; s < trace.storages.size(); s++) {
    hash.add(uint64_t{trace.live[s]} | (uint64_t{trace.storages[s]->buffer != nullptr} << 1));
    values.push_back(static_cast<int64_t>(trace.storages[s]->nbytes));
  }
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

std::optional<std::vector<int64_t>> SizedProgram::match(const std::vector<int64_t>& values) const {
  if (values.size() != constants.size()) return std::nullopt;
  std::vector<int64_t> found;
  for (const Variable& variable : variables) {
    found.push_back(values[variable.position]);
    if (found.back() < variable.low || found.back() > variable.high) return std::nullopt;
  }
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
    for (const auto& [polynomial, power] : fraction.powers) value *= std::pow(static_cast<double>(polynomial.at(variables)), power);
    std::memcpy(&filled_in->sizes[fraction.position], &value, sizeof(value));
  }
  filled_in->settle();
  return filled_in;
}

std::string SizedProgram::describe() const {
  std::ostringstream text;
  for (const Variable& variable : variables) text << (text.tellp() > 0 ? ", " : "") << variable.low << " to " << variable.high;
  return text.str();
}

std::optional<std::string> SizedProgram::to_bytes() const {
  const std::optional<std::string> bytes = program->to_bytes();
  if (!bytes) return std::nullopt;
  Writer w;
  w.text(*bytes), w.numbers(constants), w.numbers(free), w.numbers(variables);
  for (const auto& forms : {integers, filled}) w.list(forms, [&](const Form& f) { w.number(f.position), write(w, f.value); });
  w.list(fractions, [&](const Fraction& f) {
    w.number(f.position), w.number(f.factor);
    w.list(f.powers, [&](const auto& power) { write(w, power.first), w.number(power.second); });
  });
  return std::move(w.bytes);
}

std::shared_ptr<SizedProgram> SizedProgram::read_from(std::string_view bytes) try {
  Reader r(bytes);
  auto sized = std::make_shared<SizedProgram>();
  sized->program = HostProgram::read_from(r.view());
  if (sized->program == nullptr) return nullptr;
  sized->constants = r.numbers<int64_t>(), sized->free = r.numbers<uint32_t>(), sized->variables = r.numbers<Variable>();
  for (auto* forms : {&sized->integers, &sized->filled})
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

SizeFamily& size_family_of(const Hash& structure) {
  SizeFamily& family = families[structure];
  family.last_use = ++uses;
  return family;
}

bool note_sizes(SizeFamily& family, Integers integers) {
  auto& known = family.seen_sizes;
  seen_bytes -= std::min(seen_bytes, bytes_of(family));
  // Of equal sizes the last are kept: numbers may have changed.
  const auto same = std::find(known.begin(), known.end(), integers.sizes);
  const auto at = same != known.end() ? same : known.size() == kMaxSeen ? known.begin() : known.end();
  if (at != known.end()) {
    family.seen.erase(family.seen.begin() + (at - known.begin()));
    known.erase(at);
  }
  known.push_back(integers.sizes);
  family.seen.push_back(std::move(integers.values));
  seen_bytes += bytes_of(family);
  const bool is_another = known.size() > 1;
  if (seen_bytes <= kMaxBytes) return is_another;
  // Half of what has no program goes, the longest unused first.
  seen_bytes = 0;
  std::vector<uint64_t> ages;
  for (const auto& [hash, other] : families) ages.push_back(other.last_use);
  std::nth_element(ages.begin(), ages.begin() + ages.size() / 2, ages.end());
  const uint64_t oldest = ages[ages.size() / 2];
  for (auto it = families.begin(); it != families.end();) {
    SizeFamily& other = it->second;
    if (&other != &family && other.programs.empty() && !other.request && other.last_use <= oldest) {
      it = families.erase(it);
    } else {
      seen_bytes += bytes_of(other);
      ++it;
    }
  }
  return is_another;
}

void add_program_for(SizeFamily& family, std::shared_ptr<SizedProgram> program) {
  if (family.programs.size() == kMaxPrograms) family.programs.erase(family.programs.begin());
  family.programs.push_back(std::move(program));
  std::vector<SizeFamily*> with_programs;
  for (auto& [hash, other] : families)
    if (!other.programs.empty()) with_programs.push_back(&other);
  if (with_programs.size() <= kMaxFamilies) return;
  auto older = [](const SizeFamily* a, const SizeFamily* b) { return a->last_use < b->last_use; };
  (*std::min_element(with_programs.begin(), with_programs.end(), older))->programs.clear();
}

void clear_size_families() {
  families.clear();
  seen_bytes = 0;
}

}  // namespace tiny
