#include "flush/policy.h"

#include <ATen/Context.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <random>
#include <set>

#include "flush/pieces.h"
#include "flush/staged.h"
#include "python/python.h"
#include "record/recorder.h"

namespace tiny {
namespace {

std::atomic<Mode> mode{Mode::Auto};
std::minstd_rand draws;  // guarded by the device's lock

// A loop of writes has at least so many nodes, of at most so many kinds, and makes at most so many times what it fills.
constexpr size_t kNodes = 64, kKinds = 3;
constexpr int64_t kMade = 4;

// Seconds of the CPU's: as long as compiling takes.
constexpr double kMostProducts = 1e11, kLarge = 1e9;

int64_t bytes_of(const Trace& trace, const Region& region) {
  int64_t count = static_cast<int64_t>(c10::elementSize(region.dtype));
  for (uint32_t d = 0; d < region.ndim; d++) count *= trace.ints[region.shape + d];
  return count;
}

}  // namespace

Mode compile_mode() { return mode; }
void set_compile_mode(Mode value) {
  DeviceLock lock;
  draws.seed();
  mode = value;
}

Mode mode_for(c10::DeviceIndex device) {
  if (mode == Mode::Mixed) return draws() % 2 ? Mode::Always : Mode::Never;
  if (mode != Mode::Auto || !at::globalContext().deterministicAlgorithms()) return mode;
  return is_staged(device) ? Mode::Always : Mode::Never;  // the way that uses the device
}

bool may_compile(c10::DeviceIndex device) { return mode == Mode::Mixed || mode_for(device) != Mode::Never; }

bool is_heavy(const Trace& trace) {
  double products = 0;
  for (const Node& node : trace.nodes) {
    std::array<double, 3> largest{};  // of what it reads and writes, in elements
    each_region(trace, node.args, node.end, [&](const Region& region) {
      const double count = static_cast<double>(bytes_of(trace, region)) / static_cast<double>(c10::elementSize(region.dtype));
      auto least = std::min_element(largest.begin(), largest.end());
      *least = std::max(*least, count);
    });
    // Two matrices take exactly so many, other operators fewer.
    const double most = std::sqrt(largest[0] * largest[1] * largest[2]);
    if (most > kLarge && !op_traits(node.op->name).pointwise) products += most;
  }
  return products > kMostProducts;
}

bool is_cheap(const Trace& trace) {
  if (trace.nodes.size() < kNodes) return false;
  std::set<uint64_t> kinds;
  std::set<int32_t> filled;
  std::set<std::pair<int32_t, int64_t>> parts;
  int64_t made = 0, filled_bytes = 0;
  for (const Node& node : trace.nodes) {
    if (kinds.insert(node.kind).second && kinds.size() > kKinds) return false;
    for (uint32_t r = node.outs; r < node.end; r++) {
      if (trace.refs[r].kind != ArgRef::Kind::Region) continue;
      const Region& region = trace.regions[trace.refs[r].index];
      if (r < node.writes) {
        made += bytes_of(trace, region);
      } else {
        // Writing the same part again means that iterations depend on each other.
        if (!parts.emplace(region.storage, region.offset).second) return false;
        if (filled.insert(region.storage).second) filled_bytes += static_cast<int64_t>(trace.storages[region.storage]->nbytes);
      }
    }
  }
  return !filled.empty() && made <= kMade * filled_bytes;
}

}  // namespace tiny
