#include "flush/repeats.h"

namespace tiny {
namespace {

constexpr uint32_t kLongest = 8;    // nodes of a step
constexpr size_t kLeastNodes = 64;  // as a loop of writes has, in policy.cpp

// The steps that the last nodes are, by what the nodes do.
Repeats last_steps(const Trace& trace, uint32_t period) {
  const auto nodes = static_cast<uint32_t>(trace.nodes.size());
  uint32_t first = nodes - period;
  while (first > 0 && trace.nodes[first - 1].hash == trace.nodes[first - 1 + period].hash) first--;
  const uint32_t count = (nodes - first) / period;
  return {nodes - count * period, period, count, {}};
}

// Whether the steps keep their distances; notes which numbers change.
bool is_regular(const Trace& trace, Repeats& repeats) {
  int64_t own_storages = 0, own_numbers = 0;
  for (uint32_t n = repeats.first; n < repeats.first + repeats.period; n++) {
    const Node& node = trace.nodes[n];
    if (node.op->random) return false;
    for (uint32_t r = node.args; r < node.end; r++) {
      const ArgRef& ref = trace.refs[r];
      if (ref.kind != ArgRef::Kind::Region && ref.kind != ArgRef::Kind::Number) continue;
      bool changes = false;
      int64_t further = 0, moved = 0;
      for (uint32_t step = 1; step < repeats.count; step++) {
        const ArgRef& other = trace.refs[trace.nodes[n + step * repeats.period].args + (r - node.args)];
        if (other.kind != ref.kind) return false;
        if (ref.kind == ArgRef::Kind::Number) {
          if (step == 1) further = int64_t{other.index} - ref.index;
          if (int64_t{other.index} != ref.index + step * further) return false;
          changes |= !(trace.numbers[other.index] == trace.numbers[ref.index]);
          continue;
        }
        const Region &here = trace.regions[ref.index], &there = trace.regions[other.index];
        if (step == 1) further = there.storage - here.storage, moved = there.offset - here.offset;
        if (there.storage != here.storage + step * further || there.offset != here.offset + step * moved) return false;
        if (further != 0 && (trace.live[there.storage] || trace.storages[there.storage]->buffer ||
                             trace.storages[there.storage]->nbytes != trace.storages[here.storage]->nbytes))
          return false;
      }
      int64_t& own = ref.kind == ArgRef::Kind::Number ? own_numbers : own_storages;
      if (further < 0 || (further != 0 && own != 0 && own != further)) return false;
      if (further != 0) own = further;
      if (ref.kind != ArgRef::Kind::Number) {
        if (further != 0 && (trace.live[trace.regions[ref.index].storage] || trace.storages[trace.regions[ref.index].storage]->buffer))
          return false;
      } else {
        if (further == 0) return false;
        repeats.changing.push_back(changes);
      }
    }
  }
  return own_numbers == static_cast<int64_t>(repeats.changing.size());
}

}  // namespace

std::optional<Repeats> repeats_of(const Trace& trace) {
  if (trace.nodes.size() < kLeastNodes) return std::nullopt;
  for (uint32_t period = 1; period <= kLongest; period++) {
    Repeats repeats = last_steps(trace, period);
    if (repeats.count * period >= kLeastNodes && is_regular(trace, repeats)) return repeats;
  }
  return std::nullopt;
}

}  // namespace tiny
