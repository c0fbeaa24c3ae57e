// What is known of integers without reading them: an interval, whose two ends may stand apart from all else, as values
// that mean "ignore this" do (-100, 255).
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

namespace tiny {

struct Range {
  static constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();

  // Every value is `low`, is `high`, or lies from `next` to `previous`. There is none if `high` is below `low`.
  int64_t low = 1, high = 0, next = kLeast, previous = kMost;

  static Range of(int64_t low, int64_t high) { return {low, high, low, high}; }
  static Range one(int64_t value) { return {value, value, kMost, kLeast}; }
  static Range all() { return of(kLeast, kMost); }

  bool empty() const { return high < low; }
  bool is_all() const { return low == kLeast && high == kMost; }

  // Whether every value is in [least, most], or is the one that is exempt.
  bool within(int64_t least, int64_t most, std::optional<int64_t> exempt = std::nullopt) const {
    if (empty()) return true;
    auto fits = [&](int64_t value) { return (value >= least && value <= most) || value == exempt; };
    return fits(low) && fits(high) && (next > previous || (next >= least && previous <= most));
  }

  // Whether this may be one of the values.
  bool may_be(int64_t value) const { return !empty() && (value == low || value == high || (value >= next && value <= previous)); }

  // Values of either.
  Range joined(const Range& other) const {
    if (empty() || other.empty()) return empty() ? other : *this;
    Range both{std::min(low, other.low), std::max(high, other.high), kMost, kLeast};
    auto add = [&](int64_t from, int64_t to) {
      if (from <= to) both.next = std::min(both.next, from), both.previous = std::max(both.previous, to);
    };
    for (const Range* one : {this, &other}) {
      for (int64_t end : {one->low, one->high})
        if (end != both.low && end != both.high) add(end, end);
      add(one->next, one->previous);
    }
    return both;
  }
};

// What is known of a storage: of its values, if they are read as this dtype.
struct Contents {
  Range range;  // nothing was written yet: there are no values
  at::ScalarType dtype = at::ScalarType::Undefined;
  bool exact = false;  // it is what the values were found to be, so that looking again would tell nothing

  static Contents unknown() { return {Range::all(), at::ScalarType::Undefined, false}; }
};

}  // namespace tiny
