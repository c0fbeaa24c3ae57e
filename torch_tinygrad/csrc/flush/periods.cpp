// A step is known by what its nodes do and by how far away the nodes are that use the same storages before and after them.
// Those distances are the same in every step, whether a step writes where the last one did, makes new storages from the
// last one's, or takes turns between two. So a loop is a stretch in which the hash of each node is that of the node a period
// before, and all its steps have the same key, however they are cut.
#include "flush/periods.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "flush/rerolled.h"
#include "programs/programs.h"
#include "python/python.h"

namespace tiny {
namespace {

// A piece of several steps has at most so many of them, and so many nodes.
constexpr size_t kStepsOfPiece = 32, kNodesOfPiece = 64;
// A loop has at least so many steps, and more than a piece; shorter ones are compiled as they are. More where a program is
// launched as one graph: the layers of a network, forward and backward, stay together there.
constexpr size_t kSteps = 4, kStepsOfGraphs = 32, kNodes = kNodesOfPiece + 1;
// Nodes in a row by which a node is recognised again. Longer ones tell apart what looks alike within a step.
constexpr std::array<size_t, 5> kWindows = {4, 16, 64, 256, 1024};
// Nodes compared in search of a loop, for each node of the trace.
constexpr size_t kComparisons = 64;
// Storages that a step passes on are not older than so many steps.
constexpr size_t kAge = 4;
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

// Calls f(region, number) for what a node reads, changes and makes, each operand once.
template <class F>
void each_operand(const Trace& trace, const Node& node, const F& f) {
  uint64_t number = 0;
  for (uint32_t r = node.args; r < node.writes; r++)
    if (trace.refs[r].kind == ArgRef::Kind::Region) f(trace.regions[trace.refs[r].index], number++);
}

// Steps that a piece has, and the fewest that a loop has.
size_t steps_together(size_t period) {
  size_t steps = 1;
  while (2 * steps <= kStepsOfPiece && 2 * steps * period <= kNodesOfPiece) steps *= 2;
  return steps;
}
size_t fewest_steps(size_t period) { return std::max(shares_host_memory() ? kSteps : kStepsOfGraphs, steps_together(period) + 1); }

// What is compared to find loops, by node.
struct Hashes {
  std::vector<uint64_t> kinds, links;  // what a node does; and also how far away its storages are used before and after it

  Hashes(const Trace& trace, const Uses& uses) : kinds(trace.nodes.size()), links(trace.nodes.size()) {
    struct Use {
      int64_t node = -1;
      uint64_t number = 0;
    };
    std::vector<Use> before(trace.storages.size());
    for (size_t n = 0; n < trace.nodes.size(); n++) {
      const Node& node = trace.nodes[n];
      kinds[n] = mix({node.hash.a, node.hash.b, uint64_t{uses.runs[n]}});
      links[n] += kinds[n];
      if (!uses.runs[n]) continue;
      each_operand(trace, node, [&](const Region& region, uint64_t number) {
        Use& use = before[region.storage];
        const Storage& storage = *trace.storages[region.storage];
        if (use.node < 0) {
          links[n] += mix({1, number, storage.nbytes, uint64_t{storage.buffer != nullptr}, uint64_t{trace.live[region.storage]}});
        } else {
          const uint64_t distance = n - static_cast<size_t>(use.node);
          links[n] += mix({2, number, distance, use.number});
          links[use.node] += mix({3, use.number, distance, number});
        }
        use = {static_cast<int64_t>(n), number};
      });
    }
    // What is never used again is told from what a later step needs.
    for (size_t s = 0; s < before.size(); s++)
      if (before[s].node >= 0) links[before[s].node] += mix({4, before[s].number, uint64_t{trace.live[s]}});
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
  // Adds the loops among begin .. end that are recognised by `window` nodes.
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

// Whether a step reads a storage that none before it has used.
bool reads_new_inputs(const Trace& trace, const Uses& uses, const Loop& loop, size_t step) {
  bool found = false;
  for (size_t n = step; n < step + loop.period; n++)
    each_operand(trace, trace.nodes[n], [&](const Region& region, uint64_t) {
      found |= uses.first[region.storage] == static_cast<int64_t>(n) && trace.storages[region.storage]->buffer != nullptr;
    });
  return found;
}

// How much of what a loop makes is needed beyond each node of one of its steps.
struct Crossing {
  std::vector<int64_t> bytes, storages;

  Crossing(const Trace& trace, const Uses& uses, const Loop& loop, size_t step) : bytes(loop.period), storages(loop.period) {
    for (size_t n = step - std::min(step - loop.begin, kAge * loop.period); n < step + loop.period; n++)
      each_operand(trace, trace.nodes[n], [&](const Region& region, uint64_t) {
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
      each_operand(trace_, trace_.nodes[n], [&](const Region& region, uint64_t) {
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
    if (reads_new_inputs(trace, uses, loop, step + seam)) continue;
    if (crossing.storages[seam] == 0 && is_rerolled(trace, uses, loop, step + seam)) continue;
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
