// A step is known by what its nodes do and by how far away the nodes are that use the same storages before and after them.
// Those distances are the same in every step, whether a step writes where the last one did, makes new storages from the
// last one's, or takes turns between two. So a loop is a stretch in which the hash of each node is that of the node a period
// before, and all its steps have the same key, however they are cut.
#include "periods.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "programs.h"
#include "python.h"

namespace tiny {
namespace {

// A piece of several steps has at most so many of them, and so many nodes.
constexpr size_t kStepsOfPiece = 32, kNodesOfPiece = 64;
// A loop has at least so many steps, and more than a piece; shorter ones are compiled as they are. More where a program is
// launched as one graph: the layers of a network, forward and backward, stay together there.
constexpr size_t kSteps = 4, kStepsOfGraphs = 32, kNodes = kNodesOfPiece + 1;
// Nodes in a row by which a place is recognised. Longer ones tell apart what looks alike within a step.
constexpr std::array<size_t, 5> kWindows = {4, 16, 64, 256, 1024};
// Nodes compared in search of a loop, for each node of the trace.
constexpr size_t kComparisons = 64;
// Storages that steps write to in turn; storages that a step passes on are not older than so many steps.
constexpr size_t kTurns = 16, kAge = 4;
// What one kernel may do in turn: see trace/sequence.py.
constexpr int64_t kMaxWidth = int64_t{1} << 16;
constexpr size_t kMostWholes = 4096;

std::unordered_set<Hash, HashHash>& wholes() {
  static auto* all = new std::unordered_set<Hash, HashHash>;  // guarded by the device's lock
  return *all;
}

uint64_t mix(std::initializer_list<uint64_t> values) {
  Hash hash;
  for (uint64_t value : values) hash.add(value);
  return hash.a;
}

// Calls f(region, place) for what a node reads, changes and makes, each place once.
template <class F>
void each_place(const Trace& trace, const Node& node, const F& f) {
  uint64_t place = 0;
  for (uint32_t r = node.args; r < node.writes; r++)
    if (trace.refs[r].kind == ArgRef::Kind::Region) f(trace.regions[trace.refs[r].index], place++);
}

// Steps that a piece has, and the fewest that a loop has.
size_t steps_together(size_t period) {
  size_t steps = 1;
  while (2 * steps <= kStepsOfPiece && 2 * steps * period <= kNodesOfPiece) steps *= 2;
  return steps;
}
size_t fewest_steps(size_t period) { return std::max(shares_host_memory() ? kSteps : kStepsOfGraphs, steps_together(period) + 1); }

// Nodes begin .. end repeat those a period before, from begin + period on.
struct Loop {
  size_t begin, end, period;
};

// What is compared to find loops, by node.
struct Hashes {
  std::vector<uint64_t> kinds, links;  // what a node does; and also how far away its storages are used before and after it

  Hashes(const Trace& trace, const Uses& uses) : kinds(trace.nodes.size()), links(trace.nodes.size()) {
    struct Use {
      int64_t node = -1;
      uint64_t place = 0;
    };
    std::vector<Use> before(trace.storages.size());
    for (size_t n = 0; n < trace.nodes.size(); n++) {
      const Node& node = trace.nodes[n];
      kinds[n] = mix({node.hash.a, node.hash.b, uint64_t{uses.runs[n]}});
      links[n] += kinds[n];
      if (!uses.runs[n]) continue;
      each_place(trace, node, [&](const Region& region, uint64_t place) {
        Use& use = before[region.storage];
        const Storage& storage = *trace.storages[region.storage];
        if (use.node < 0) {
          links[n] += mix({1, place, storage.nbytes, uint64_t{storage.buffer != nullptr}, uint64_t{trace.live[region.storage]}});
        } else {
          const uint64_t distance = n - static_cast<size_t>(use.node);
          links[n] += mix({2, place, distance, use.place});
          links[use.node] += mix({3, use.place, distance, place});
        }
        use = {static_cast<int64_t>(n), place};
      });
    }
    // What is never used again is told from what a later step needs.
    for (size_t s = 0; s < before.size(); s++)
      if (before[s].node >= 0) links[before[s].node] += mix({4, before[s].place, uint64_t{trace.live[s]}});
  }
};

class Search {
 public:
  explicit Search(const std::vector<uint64_t>& hashes) : hashes_(hashes), budget_(kComparisons * hashes.size()) {}

  std::vector<Loop> loops() {
    std::vector<Loop> found;
    for (size_t window : kWindows) {
      std::vector<Loop> more;
      size_t begin = 0;
      for (const Loop& loop : found) {
        search(begin, loop.begin, window, more);
        begin = loop.end;
      }
      search(begin, hashes_.size(), window, more);
      found.insert(found.end(), more.begin(), more.end());
      std::sort(found.begin(), found.end(), [](const Loop& a, const Loop& b) { return a.begin < b.begin; });
    }
    return found;
  }

 private:
  // Adds the loops among begin .. end whose places are recognised by `window` nodes.
  void search(size_t begin, size_t end, size_t window, std::vector<Loop>& found) {
    while (const size_t next = first_loop(begin, end, window, found)) begin = next;
  }

  // Adds the first of them and gives its end; 0 where there is none.
  size_t first_loop(size_t begin, size_t end, size_t window, std::vector<Loop>& found) {
    if (end - begin < std::max(kNodes, 2 * window)) return 0;
    constexpr uint64_t kBase = 0x9e3779b97f4a7c15ull;
    uint64_t power = 1, rolling = 0;
    for (size_t i = 0; i < window; i++) power *= kBase;
    std::unordered_map<uint64_t, size_t> seen;
    size_t tried_period = 0, tried_end = 0;
    for (size_t n = begin; n < end; n++) {
      rolling = rolling * kBase + hashes_[n];
      if (n >= begin + window) rolling -= power * hashes_[n - window];
      if (n + 1 < begin + window) continue;
      const auto [last, is_new] = seen.try_emplace(rolling, n);
      const size_t period = n - last->second;
      last->second = n;
      if (is_new || period * fewest_steps(period) > end - begin || (period == tried_period && n < tried_end) || budget_ == 0) continue;
      size_t low = n, high = n + 1;
      while (low > begin + period && hashes_[low - 1] == hashes_[low - 1 - period]) low--;
      while (high < end && hashes_[high] == hashes_[high - period]) high++;
      budget_ -= std::min(budget_, high - low);
      low -= period;
      if (high - low >= std::max(kNodes, fewest_steps(period) * period)) {
        found.push_back({low, high, period});
        return high;
      }
      tried_period = period, tried_end = high;
    }
    return 0;
  }

  const std::vector<uint64_t>& hashes_;
  size_t budget_;
};

size_t nodes_in(const std::vector<Loop>& loops) {
  size_t count = 0;
  for (const Loop& loop : loops) count += loop.end - loop.begin;
  return count;
}

// Whether loops are most of a trace: cutting a small part out of it gains little.
bool are_most(const std::vector<Loop>& loops, const Trace& trace) { return 4 * nodes_in(loops) >= 3 * trace.nodes.size(); }

bool is_pointwise(const OpInfo& op) {
  static auto* known = new std::unordered_map<const OpInfo*, bool>;  // guarded by the device's lock
  const auto [found, is_new] = known->try_emplace(&op);
  if (is_new) found->second = op_traits(op.name).pointwise;
  return found->second;
}

// Whether trace/reroll.py makes one kernel of a loop: its steps compute element by element, pass nothing on but through
// storages that they all use, and write to another place each. `step` is the first node of one in the middle of it.
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
  bool reads_new_inputs() const {
    bool found = false;
    for (size_t n = step_; n < step_ + loop_.period; n++)
      each_place(trace_, trace_.nodes[n], [&](const Region& region, uint64_t) {
        found |= uses_.first[region.storage] == static_cast<int64_t>(n) && trace_.storages[region.storage]->buffer != nullptr;
      });
    return found;
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

// How much of what a loop makes is needed beyond each place of one of its steps.
struct Crossing {
  std::vector<int64_t> bytes, storages;

  Crossing(const Trace& trace, const Uses& uses, const Loop& loop, size_t step) : bytes(loop.period), storages(loop.period) {
    for (size_t n = step - std::min(step - loop.begin, kAge * loop.period); n < step + loop.period; n++)
      each_place(trace, trace.nodes[n], [&](const Region& region, uint64_t) {
        const int32_t s = region.storage;
        const Storage& storage = *trace.storages[s];
        if (uses.first[s] != static_cast<int64_t>(n) || storage.buffer != nullptr) return;
        for (size_t seam = std::max(step, n + 1); seam < step + loop.period && static_cast<int64_t>(seam) <= uses.last[s]; seam++) {
          storages[seam - step]++;
          if (!trace.live[s]) bytes[seam - step] += static_cast<int64_t>(storage.nbytes);
        }
      });
  }
};

// Where a step is best begun, counted from the first node of the step at hand: where the fewest bytes cross; if there is a
// choice, after a write, and where the loop begins (`low`).
size_t best_seam(const Trace& trace, const Crossing& crossing, size_t step, size_t low) {
  const size_t period = crossing.bytes.size();
  auto rank = [&](size_t seam) {
    const Node& before = trace.nodes[step + seam - 1];
    return std::tuple(crossing.bytes[seam], before.writes == before.end, (step + seam - low) % period);
  };
  size_t best = 0;
  for (size_t seam = 1; seam < period; seam++)
    if (rank(seam) < rank(best)) best = seam;
  return best;
}

// Cuts steps of `period` nodes into pieces: several steps in one where those are like most, while that leaves a single one at
// least, so that both kinds of piece are there whatever the number of steps.
class Cutter {
 public:
  Cutter(const Trace& trace, const Uses& uses, const std::vector<uint64_t>& kinds)
      : trace_(trace), uses_(uses), kinds_(kinds), numbers_(trace.storages.size(), {-1, 0}) {}

  void cut(size_t begin, size_t end, size_t period, std::vector<size_t>& ends) {
    const size_t together = steps_together(period), steps = (end - begin) / period;
    std::optional<uint64_t> usual;
    if (steps > together) usual = seen_from_outside(begin + (steps - together) / 2 * period, together * period);
    for (size_t at = begin; at < end;) {
      const bool several = (end - at) / period > together && seen_from_outside(at, together * period) == usual;
      ends.push_back(at += several ? together * period : period);
    }
  }

 private:
  // What a stretch of nodes is as a trace of its own: the same for two that have the same key.
  uint64_t seen_from_outside(size_t begin, size_t count) {
    const auto end = static_cast<int64_t>(begin + count);
    Hash hash;
    int32_t storages = 0;
    stretch_++;
    for (size_t n = begin; n < begin + count; n++) {
      hash.add(kinds_[n]);
      each_place(trace_, trace_.nodes[n], [&](const Region& region, uint64_t) {
        const int32_t s = region.storage;
        auto& [used_in, number] = numbers_[s];
        if (used_in != stretch_) {
          used_in = stretch_, number = storages++;
          hash.add(trace_.storages[s]->nbytes);
          hash.add(uint64_t{trace_.live[s] || uses_.last[s] >= end} | (uint64_t{is_there(s, begin)} << 1));
        }
        hash.add(static_cast<uint64_t>(number));
      });
    }
    return hash.a;
  }
  bool is_there(int32_t storage, size_t begin) const {
    return trace_.storages[storage]->buffer != nullptr || (uses_.first[storage] >= 0 && uses_.first[storage] < static_cast<int64_t>(begin));
  }

  const Trace& trace_;
  const Uses& uses_;
  const std::vector<uint64_t>& kinds_;
  std::vector<std::pair<int64_t, int32_t>> numbers_;  // by storage: the stretch that used it last, its number there
  int64_t stretch_ = 0;
};

}  // namespace

bool may_repeat(const Trace& trace, bool at_bound) {
  return trace.nodes.size() >= kNodes && (at_bound || wholes().count(key_of(trace)) == 0);
}

Cuts cuts_of(const Trace& trace, const Uses& uses, bool at_bound) {
  const Hashes hashes(trace, uses);
  std::vector<Loop> loops = Search(hashes.links).loops();
  // Steps that do the same with their storages in another order, or some of which are kept, are steps all the same.
  if (!are_most(loops, trace)) loops = Search(hashes.kinds).loops();
  if (!are_most(loops, trace)) {
    if (wholes().size() >= kMostWholes) wholes().clear();
    if (!at_bound) wholes().insert(key_of(trace));
    return {};
  }
  Cuts cuts;
  Cutter cutter(trace, uses, hashes.kinds);
  const size_t count = trace.nodes.size();
  size_t done = 0;
  for (size_t i = 0; i < loops.size(); i++) {
    const Loop& loop = loops[i];
    const size_t period = loop.period, step = loop.begin + (loop.end - loop.begin) / period / 4 * period;
    // The first steps and the last may find and leave storages otherwise than those between.
    const size_t bound = i + 1 < loops.size() ? loops[i + 1].begin : count;
    size_t low = loop.begin, high = loop.end;
    while (low > done && hashes.kinds[low - 1] == hashes.kinds[low - 1 + period]) low--;
    while (high < bound && hashes.kinds[high] == hashes.kinds[high - period]) high++;
    const Crossing crossing(trace, uses, loop, step);
    const size_t seam = best_seam(trace, crossing, step, low);
    Rerolled rerolled(trace, uses, loop, step + seam);
    if (rerolled.reads_new_inputs() || (crossing.storages[seam] == 0 && rerolled.is_likely())) continue;
    const size_t phase = (step + seam) % period;
    const size_t begin = low + (phase + period - low % period) % period, end = high - (high % period + period - phase) % period;
    if (begin > done) cuts.ends.push_back(begin);
    cutter.cut(begin, end, period, cuts.ends);
    done = end;
    cuts.ends_in_step = high == count && end < count;
  }
  if (cuts.ends.empty()) return {};
  if (done < count) cuts.ends.push_back(count);
  return cuts;
}

}  // namespace tiny
