#include "infer/range_rules.h"

#include <string_view>
#include <unordered_map>

#include "infer/ranges.h"
#include "record/rule_name.h"

namespace tiny {

// The arguments a rule names, in its order, how many elements the result has, and what those can be.
class GivenArguments {
 public:
  GivenArguments(c10::ArrayRef<c10::IValue> args, const std::vector<int>& positions, int64_t numel, const Range& bounds)
      : numel(numel), bounds(bounds), args_(args), positions_(positions) {}

  bool has(size_t i) const { return positions_[i] >= 0 && !args_[positions_[i]].isNone(); }
  const c10::IValue& operator[](size_t i) const { return args_[positions_[i]]; }
  Range range(size_t i) const { return has(i) ? range_of((*this)[i]) : Range(); }
  // After it is converted to the result's dtype, which a number need not fit: -16 is 240 among bytes.
  Range converted(size_t i) const {
    const Range given = range(i);
    return given.within(bounds.low, bounds.high) ? given : Range::all();
  }
  const at::Tensor& tensor(size_t i) const { return (*this)[i].toTensor(); }
  size_t size() const { return positions_.size(); }

  // The size of a tensor along a dimension that is an argument too, or of all of it.
  int64_t size_along(size_t i, size_t dim) const {
    const at::Tensor& t = tensor(i);
    if (t.dim() == 0) return 1;
    return has(dim) && (*this)[dim].isInt() ? t.size((*this)[dim].toInt()) : t.numel();
  }

  const int64_t numel;
  const Range bounds;

 private:
  c10::ArrayRef<c10::IValue> args_;
  const std::vector<int>& positions_;
};

namespace {

Range sum(const Range& a, const Range& b) {
  int64_t low, high;
  if (__builtin_add_overflow(a.low, b.low, &low) || __builtin_add_overflow(a.high, b.high, &high)) return Range::all();
  return Range::of(low, high);
}

Range product(const Range& a, const Range& b) {
  int64_t low = Range::kMost, high = Range::kLeast;
  for (int64_t x : {a.low, a.high})
    for (int64_t y : {b.low, b.high}) {
      int64_t value;
      if (__builtin_mul_overflow(x, y, &value)) return Range::all();
      low = std::min(low, value), high = std::max(high, value);
    }
  return Range::of(low, high);
}

Range up_to(int64_t count) { return Range::of(0, std::max<int64_t>(count - 1, 0)); }

Range among_first(const GivenArguments& given, size_t count) {
  Range all;
  for (size_t i = 0; i < count; i++) all = all.joined(given.range(i));
  return all;
}

// The result's values are among those of the arguments.
Range among(const GivenArguments& given) { return among_first(given, given.size()); }
Range among_and_zero(const GivenArguments& given) { return among(given).joined(Range::one(0)); }

// As well, unless the last argument says that values are added or multiplied.
Range among_unless(const GivenArguments& given) {
  const size_t last = given.size() - 1;
  if (given.has(last) && !(given[last].isBool() && !given[last].toBool())) return Range::all();
  return among_first(given, last);
}

template <int64_t Low, int64_t High>
Range fixed(const GivenArguments&) {
  return Range::of(Low, High);
}

// (self, dim): places along it.
Range position(const GivenArguments& given) { return up_to(given.size_along(0, 1)); }

// (self): places in its last dimension.
Range category(const GivenArguments& given) { return up_to(given.tensor(0).dim() == 0 ? 1 : given.tensor(0).size(-1)); }

// (sorted): places between its elements.
Range between(const GivenArguments& given) { return Range::of(0, given.tensor(0).dim() == 0 ? 1 : given.tensor(0).size(-1)); }

// (self, fill): coordinates in it.
Range coordinate(const GivenArguments& given) {
  int64_t most = 1;
  for (int64_t size : given.tensor(0).sizes()) most = std::max(most, size);
  return up_to(most).joined(given.range(1));
}

// (start, end, step): from start to before end.
Range progression(const GivenArguments& given) {
  const Range start = given.has(0) ? given.range(0) : Range::one(0), end = given.range(1),
              step = given.has(2) ? given.range(2) : Range::one(1);
  const bool whole = (!given.has(0) || given[0].isInt()) && given[1].isInt();
  if (!whole) return start.joined(end);
  const int64_t last = step.low > 0 ? end.low - 1 : step.high < 0 ? end.low + 1 : end.low;
  return Range::of(std::min(start.low, last), std::max(start.low, last));
}

// (low, high): from low to below high.
Range drawn(const GivenArguments& given) {
  const Range high = given.range(1);
  if (!given.has(1) || high.is_all()) return Range::all();
  const Range low = given.has(0) ? given.range(0) : Range::one(0);
  return low.is_all() ? low : Range::of(std::min(low.low, high.high - 1), high.high - 1);
}

// (self, other, alpha)
Range added(const GivenArguments& given) {
  return sum(given.range(0), given.has(2) ? product(given.range(1), given.range(2)) : given.range(1));
}
Range subtracted(const GivenArguments& given) {
  const Range other = given.has(2) ? product(given.range(1), given.range(2)) : given.range(1);
  return sum(given.range(0), product(other, Range::one(-1)));
}
Range multiplied(const GivenArguments& given) { return product(given.range(0), given.range(1)); }
Range negated(const GivenArguments& given) { return product(given.range(0), Range::one(-1)); }
Range absolute(const GivenArguments& given) {
  const Range self = given.range(0), other = product(self, Range::one(-1));
  if (other.is_all()) return other;
  return Range::of(self.low <= 0 && self.high >= 0 ? 0 : std::min(std::abs(self.low), std::abs(self.high)),
                   std::max(self.high, other.high));
}

// (self, other): what is left of a division, with the sign of the divisor.
Range remainder(const GivenArguments& given) {
  const Range other = given.converted(1);
  return other.low > 0 && !other.empty() ? Range::of(0, other.high - 1) : Range::all();
}

// (self, other), rounded either way.
Range quotient(const GivenArguments& given) {
  const Range self = given.converted(0), other = given.converted(1);
  if (other.low < 1 || other.empty()) return Range::all();
  if (self.low >= 0) return Range::of(self.low / other.high, self.high / other.low);
  return Range::of(self.low, std::max<int64_t>(self.high, 0));
}

// (self, min, max)
Range clamped(const GivenArguments& given) {
  Range self = given.converted(0);
  self = Range::of(self.low, self.high);
  if (given.has(1)) {
    const Range least = given.converted(1);
    self = Range::of(std::max(self.low, least.low), std::max(self.high, least.high));
  }
  if (given.has(2)) {
    const Range most = given.converted(2);
    self = Range::of(std::min(self.low, most.low), std::min(self.high, most.high));
  }
  return self;
}

// (self, other)
Range greater(const GivenArguments& given) {
  const Range a = given.converted(0), b = given.converted(1);
  return Range::of(std::max(a.low, b.low), std::max(a.high, b.high));
}
Range smaller(const GivenArguments& given) {
  const Range a = given.converted(0), b = given.converted(1);
  return Range::of(std::min(a.low, b.low), std::min(a.high, b.high));
}
Range common_bits(const GivenArguments& given) {
  const Range a = given.converted(0), b = given.converted(1);
  if (a.low < 0 && b.low < 0) return Range::all();
  return Range::of(0, std::min(a.low < 0 ? Range::kMost : a.high, b.low < 0 ? Range::kMost : b.high));
}
Range shifted_right(const GivenArguments& given) {
  const Range self = given.range(0);
  return self.low >= 0 ? Range::of(0, self.high) : Range::all();
}

// Comparisons: what is compared is what is known, of numbers that are not converted first.
bool are_alike(const GivenArguments& given) {
  const at::Tensor& self = given.tensor(0);
  if (!is_integral(self.scalar_type())) return false;
  if (given[1].isTensor()) return given.tensor(1).scalar_type() == self.scalar_type();
  const Range bounds = range_of_dtype(self.scalar_type());
  return given[1].isInt() && given.range(1).within(bounds.low, bounds.high);
}

// A truth value: 1 and 0 where it is known to be.
Range truth(bool is_true, bool is_false) { return is_true ? Range::one(1) : is_false ? Range::one(0) : Range::of(0, 1); }

// (self, other), in turn.
template <size_t First, bool OrEqual>
Range is_less(const GivenArguments& given) {
  const Range a = given.range(First), b = given.range(1 - First);
  if (!are_alike(given) || a.empty() || b.empty()) return truth(false, false);
  return OrEqual ? truth(a.high <= b.low, a.low > b.high) : truth(a.high < b.low, a.low >= b.high);
}

// (self, other): whether they are the same, or are not.
template <bool Same>
Range is_equal(const GivenArguments& given) {
  if (!given.has(0) || !given.has(1) || !are_alike(given)) return truth(false, false);
  const Range a = given.range(0), b = given.range(1);
  if (a.empty() || b.empty()) return truth(false, false);
  const bool same = a.low == b.high && a.high == b.low, differ = a.high < b.low || a.low > b.high;
  return truth(Same ? same : differ, Same ? differ : same);
}

// (elements, test_elements, invert)
Range is_among(const GivenArguments& given) {
  if (given.has(2) && given[2].toBool()) return truth(false, false);
  return is_equal<true>(given);
}

// (self): whether any of its elements, all of them, or none of one is true.
bool has_no_zero(const Range& range) { return range.low > 0 || range.high < 0; }
Range any_true(const GivenArguments& given) {
  const Range self = given.range(0);
  return given.tensor(0).numel() > 0 && !self.empty() ? truth(has_no_zero(self), self.within(0, 0)) : truth(false, false);
}
Range not_true(const GivenArguments& given) {
  const Range self = given.range(0);
  return self.empty() ? truth(false, false) : truth(self.within(0, 0), has_no_zero(self));
}

// (self): sums of equally many elements.
Range total(const GivenArguments& given) {
  const int64_t count = given.numel > 0 ? (given.tensor(0).numel() + given.numel - 1) / given.numel : 0;
  return product(given.range(0).joined(Range::one(0)), Range::one(count));
}
// (self, dim): sums of the first ones.
Range running_total(const GivenArguments& given) {
  return product(given.range(0).joined(Range::one(0)), Range::one(given.size_along(0, 1)));
}
// (self): places in a volume of its last dimensions.
template <int64_t Dims>
Range inside(const GivenArguments& given) {
  int64_t count = 1;
  for (int64_t d = 1; d <= Dims; d++) count *= given.tensor(0).size(-d);
  return up_to(count);
}
Range anything(const GivenArguments&) { return Range::all(); }
Range counted(const GivenArguments& given) { return Range::of(0, given.tensor(0).numel()); }

struct Row {
  RangeRule::Function function;
  std::vector<std::string_view> arguments;
};

// Operator, without its overload and without the mark of writing in place → a rule for each result.
const std::unordered_map<std::string_view, std::vector<Row>>& table() {
  static const auto* rows = new std::unordered_map<std::string_view, std::vector<Row>>{
      // values of arguments
      {"copy", {{among, {"src"}}}},
      {"clone", {{among, {"self"}}}},
      {"repeat", {{among, {"self"}}}},
      {"flip", {{among, {"self"}}}},
      {"roll", {{among, {"self"}}}},
      {"cat", {{among, {"tensors"}}}},
      {"where", {{among, {"self", "other"}}}},
      {"index", {{among, {"self"}}}},
      {"index_select", {{among, {"self"}}}},
      {"gather", {{among, {"self"}}}},
      {"take", {{among, {"self"}}}},
      {"embedding", {{among, {"weight"}}}},
      {"amax", {{among, {"self"}}}},
      {"amin", {{among, {"self"}}}},
      {"aminmax", {{among, {"self"}}, {among, {"self"}}}},
      {"constant_pad_nd", {{among, {"self", "value"}}}},
      {"reflection_pad1d", {{among, {"self"}}}},
      {"replication_pad1d", {{among, {"self"}}}},
      {"tril", {{among_and_zero, {"self"}}}},
      {"triu", {{among_and_zero, {"self"}}}},
      {"masked_fill", {{among, {"self", "value"}}}},
      {"masked_scatter", {{among, {"self", "source"}}}},
      {"index_copy", {{among, {"self", "source"}}}},
      {"index_fill", {{among, {"self", "value"}}}},
      {"index_put", {{among_unless, {"self", "values", "accumulate"}}}},
      {"_index_put_impl", {{among_unless, {"self", "values", "accumulate"}}}},
      {"put", {{among_unless, {"self", "source", "accumulate"}}}},
      {"scatter", {{among_unless, {"self", "src", "value", "reduce"}}}},
      // numbers
      {"fill", {{among, {"value"}}}},
      {"full", {{among, {"fill_value"}}}},
      {"full_like", {{among, {"fill_value"}}}},
      {"new_full", {{among, {"fill_value"}}}},
      {"scalar_tensor", {{among, {"s"}}}},
      {"zero", {{fixed<0, 0>, {}}}},
      {"zeros", {{fixed<0, 0>, {}}}},
      {"zeros_like", {{fixed<0, 0>, {}}}},
      {"new_zeros", {{fixed<0, 0>, {}}}},
      {"ones", {{fixed<1, 1>, {}}}},
      {"ones_like", {{fixed<1, 1>, {}}}},
      {"new_ones", {{fixed<1, 1>, {}}}},
      {"eye", {{fixed<0, 1>, {}}}},
      {"sign", {{fixed<-1, 1>, {}}}},
      {"arange", {{progression, {"start", "end", "step"}}}},
      {"randint", {{drawn, {"low", "high"}}}},
      {"randint_like", {{drawn, {"low", "high"}}}},
      {"random", {{drawn, {"from", "to"}}}},
      {"randperm", {{drawn, {"", "n"}}}},
      // places
      {"argmax", {{position, {"self", "dim"}}}},
      {"argmin", {{position, {"self", "dim"}}}},
      {"sort", {{among, {"self"}}, {position, {"self", "dim"}}}},
      {"topk", {{among, {"self"}}, {position, {"self", "dim"}}}},
      {"kthvalue", {{among, {"self"}}, {position, {"self", "dim"}}}},
      {"mode", {{among, {"self"}}, {position, {"self", "dim"}}}},
      {"median", {{among, {"self"}}, {position, {"self", "dim"}}}},
      {"max", {{among, {"self", "other"}}, {position, {"self", "dim"}}}},
      {"min", {{among, {"self", "other"}}, {position, {"self", "dim"}}}},
      {"cummax", {{among, {"self"}}, {position, {"self", "dim"}}}},
      {"cummin", {{among, {"self"}}, {position, {"self", "dim"}}}},
      {"multinomial", {{category, {"self"}}}},
      {"bucketize", {{between, {"boundaries"}}}},
      {"searchsorted", {{between, {"sorted_sequence"}}}},
      {"nonzero_static", {{coordinate, {"self", "fill_value"}}}},
      {"max_pool2d_with_indices", {{anything, {}}, {inside<2>, {"self"}}}},
      {"max_pool3d_with_indices", {{anything, {}}, {inside<3>, {"self"}}}},
      {"adaptive_max_pool2d", {{anything, {}}, {inside<2>, {"self"}}}},
      {"adaptive_max_pool3d", {{anything, {}}, {inside<3>, {"self"}}}},
      // arithmetic
      {"add", {{added, {"self", "other", "alpha"}}}},
      {"sub", {{subtracted, {"self", "other", "alpha"}}}},
      {"rsub", {{subtracted, {"other", "self", "alpha"}}}},
      {"mul", {{multiplied, {"self", "other"}}}},
      {"neg", {{negated, {"self"}}}},
      {"abs", {{absolute, {"self"}}}},
      {"remainder", {{remainder, {"self", "other"}}}},
      {"div", {{quotient, {"self", "other"}}}},
      {"floor_divide", {{quotient, {"self", "other"}}}},
      {"clamp", {{clamped, {"self", "min", "max"}}}},
      {"clamp_min", {{clamped, {"self", "min", ""}}}},
      {"clamp_max", {{clamped, {"self", "", "max"}}}},
      {"maximum", {{greater, {"self", "other"}}}},
      {"minimum", {{smaller, {"self", "other"}}}},
      {"bitwise_and", {{common_bits, {"self", "other"}}}},
      {"bitwise_right_shift", {{shifted_right, {"self"}}}},
      {"sum", {{total, {"self"}}}},
      {"cumsum", {{running_total, {"self", "dim"}}}},
      {"count_nonzero", {{counted, {"self"}}}},
      // truth
      {"lt", {{is_less<0, false>, {"self", "other"}}}},
      {"le", {{is_less<0, true>, {"self", "other"}}}},
      {"gt", {{is_less<1, false>, {"self", "other"}}}},
      {"ge", {{is_less<1, true>, {"self", "other"}}}},
      {"eq", {{is_equal<true>, {"self", "other"}}}},
      {"ne", {{is_equal<false>, {"self", "other"}}}},
      {"isin", {{is_among, {"elements", "test_elements", "invert"}}}},
      {"any", {{any_true, {"self"}}}},
      {"all", {{any_true, {"self"}}}},
      {"logical_not", {{not_true, {"self"}}}},
  };
  return *rows;
}

}  // namespace

std::vector<RangeRule> range_rules(const c10::FunctionSchema& schema) {
  const auto found = table().find(rule_name(schema));
  if (found == table().end()) return {};
  std::vector<RangeRule> rules;
  for (const Row& row : found->second) {
    RangeRule rule{row.function, {}};
    for (std::string_view argument : row.arguments) rule.arguments.push_back(schema.argumentIndexWithName(argument).value_or(-1));
    rules.push_back(std::move(rule));
  }
  return rules;
}

Range result_range(const std::vector<RangeRule>& rules, c10::ArrayRef<c10::IValue> args, size_t result, at::ScalarType dtype,
                   int64_t numel) {
  if (result >= rules.size() || !is_integral(dtype)) return Range::all();
  const RangeRule& rule = rules[result];
  const Range bounds = range_of_dtype(dtype);
  const Range range = rule.function(GivenArguments(args, rule.arguments, numel, bounds));
  return range.within(bounds.low, bounds.high) ? range : Range::all();
}

}  // namespace tiny
