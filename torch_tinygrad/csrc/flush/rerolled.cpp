#include "flush/rerolled.h"

#include <algorithm>
#include <unordered_map>

#include "python/python.h"

namespace tiny {
namespace {

// Storages that steps write to in turn.
constexpr size_t kTurns = 16;
// What one kernel may do in turn: see trace/sequence.py.
constexpr int64_t kMaxWidth = int64_t{1} << 16;

bool is_pointwise(const OpInfo& op) {
  static auto* known = new std::unordered_map<const OpInfo*, bool>;  // guarded by the device's lock
  const auto [found, is_new] = known->try_emplace(&op);
  if (is_new) found->second = op_traits(op.name).pointwise;
  return found->second;
}

class Rerolled {
 public:
  Rerolled(const Trace& trace, const Uses& uses, const Loop& loop, size_t step)
      : trace_(trace), uses_(uses), loop_(loop), step_(step), period_(loop.period) {}

  bool is_likely() {
    for (size_t n = 0; n < loop_.period; n++)
      if (!is_pointwise(*trace_.nodes[step_ + n].op)) return false;
    find_turns();
    gather();
    if (!walks_) return false;
    // Steps that use what others wrote are run in turn by one kernel; those that do not are batched, whatever they are.
    return is_plain_ || !has_conflicts();
  }

 private:
  struct Access {
    const Region* region;
    int64_t delta;
    bool writes;
    size_t nest;
  };

  int64_t numel(const Region& region) const {
    int64_t count = 1;
    for (uint32_t d = 0; d < region.ndim; d++) count *= trace_.ints[region.shape + d];
    return count;
  }
  bool same_shape(const Region& a, const Region& b) const {
    return a.ndim == b.ndim && std::equal(&trace_.ints[a.shape], &trace_.ints[a.shape] + size_t{2} * a.ndim, trace_.ints.begin() + b.shape);
  }

  // Steps may write to several storages in turn: all of those together are a step then.
  void find_turns() {
    for (size_t period = loop_.period; step_ + 2 * period <= loop_.end && period <= kTurns * loop_.period; period += loop_.period)
      if (meets_itself(period)) {
        period_ = period;
        return;
      }
  }
  // Whether what a step does not make itself is what the step a period later uses.
  bool meets_itself(size_t period) const {
    for (size_t n = step_; n < step_ + loop_.period; n++) {
      const Node &node = trace_.nodes[n], &next = trace_.nodes[n + period];
      for (uint32_t r = node.args; r < node.end; r++) {
        if (trace_.refs[r].kind != ArgRef::Kind::Region) continue;
        const int32_t storage = trace_.regions[trace_.refs[r].index].storage;
        if (uses_.first[storage] < static_cast<int64_t>(step_) &&
            storage != trace_.regions[trace_.refs[next.args + (r - node.args)].index].storage)
          return false;
      }
    }
    return true;
  }

  void gather() {
    int64_t width = -1;
    size_t nest = 0;
    for (size_t n = step_; n < step_ + period_; n++) {
      const Node &node = trace_.nodes[n], &next = trace_.nodes[n + period_];
      for (uint32_t r = node.outs; r < node.end; r++)
        if (trace_.refs[r].kind == ArgRef::Kind::Region) {
          const int64_t own = numel(trace_.regions[trace_.refs[r].index]);
          nest += own != width;
          width = own;
        }
      for (uint32_t r = node.args; r < node.end; r++) {
        if (trace_.refs[r].kind != ArgRef::Kind::Region) continue;
        const Region &region = trace_.regions[trace_.refs[r].index], &then = trace_.regions[trace_.refs[next.args + (r - node.args)].index];
        const int64_t count = numel(region);
        is_plain_ = is_plain_ && !c10::isComplexType(region.dtype) && 0 < count && count <= kMaxWidth;
        if (region.storage != then.storage) continue;
        const bool writes = r >= node.outs;
        accesses_[region.storage].push_back({&region, then.offset - region.offset, writes, nest});
        walks_ = walks_ || (writes && then.offset != region.offset);
      }
    }
    for (const auto& [storage, accesses] : accesses_)
      for (const Access& a : accesses) {
        is_plain_ = is_plain_ && a.region->dtype == accesses[0].region->dtype;
        for (const Access& b : accesses)
          if (a.writes && differ(a, b) && a.nest == b.nest && numel(*a.region) > 1 && meet(*a.region, *b.region)) is_plain_ = false;
      }
  }
  bool differ(const Access& a, const Access& b) const {
    return a.delta != b.delta || a.region->offset != b.region->offset || !same_shape(*a.region, *b.region);
  }
  bool has_conflicts() const {
    for (const auto& [storage, accesses] : accesses_)
      for (const Access& a : accesses)
        for (const Access& b : accesses)
          if (a.writes && differ(a, b)) return true;
    return false;
  }
  // Whether the stretches of memory in which they lie do.
  bool meet(const Region& a, const Region& b) const {
    auto extent = [&](const Region& region) {
      int64_t least = region.offset, most = region.offset;
      for (uint32_t d = 0; d < region.ndim; d++) {
        const int64_t reach = (trace_.ints[region.shape + d] - 1) * trace_.ints[region.shape + region.ndim + d];
        (reach < 0 ? least : most) += reach;
      }
      return std::pair(least, most);
    };
    const auto [a_least, a_most] = extent(a);
    const auto [b_least, b_most] = extent(b);
    return a_least <= b_most && b_least <= a_most;
  }

  const Trace& trace_;
  const Uses& uses_;
  const Loop loop_;
  const size_t step_;
  size_t period_;
  std::unordered_map<int32_t, std::vector<Access>> accesses_;  // to storages that all steps use
  bool walks_ = false, is_plain_ = true;
};

}  // namespace

bool is_rerolled(const Trace& trace, const Uses& uses, const Loop& loop, size_t step) {
  return Rerolled(trace, uses, loop, step).is_likely();
}

}  // namespace tiny
