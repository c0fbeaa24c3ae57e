#include "flush/aside.h"

#include <algorithm>
#include <cstdio>

#include "flush/direct.h"
#include "flush/flush.h"
#include "flush/pieces.h"
#include "python/python.h"
#include "record/looks.h"
#include "record/recorder.h"

namespace tiny {
namespace {

// What is worth computing twice so that the trace is not cut: nodes, and bytes of all they read and make. And how many
// pending nodes are searched for them.
constexpr size_t kMostNodes = 64, kMostSearched = 4096;
constexpr int64_t kMostBytes = int64_t{16} << 20;

// The nodes of a trace that a storage's value depends on, if they are few and change nothing that was there before.
class Search {
 public:
  explicit Search(const Trace& trace) : trace_(trace), needed_(trace.storages.size()) {}

  bool run(int32_t target) {
    if (trace_.nodes.size() > kMostSearched || !need(target)) return false;
    for (size_t n = trace_.nodes.size(); n-- > 0 && open_ > 0;) {
      const Node& node = trace_.nodes[n];
      bool makes = false;
      each_region(trace_, node.outs, node.end, [&](const Region& region) { makes = makes || needed_[region.storage]; });
      if (makes && !take(static_cast<uint32_t>(n))) return false;
    }
    std::reverse(nodes.begin(), nodes.end());
    return true;
  }

  std::vector<uint32_t> nodes;

 private:
  bool take(uint32_t n) {
    const Node& node = trace_.nodes[n];
    if (node.op->random || node.op->refuses || nodes.size() == kMostNodes) return false;
    nodes.push_back(n);
    bool may = true;
    each_region(trace_, node.args, node.end, [&](const Region& region) {
      int64_t count = static_cast<int64_t>(c10::elementSize(region.dtype));
      for (uint32_t d = 0; d < region.ndim; d++) count *= trace_.ints[region.shape + d];
      bytes_ += count;
      may = may && need(region.storage);
    });
    each_region(trace_, node.outs, node.writes, [&](const Region&) { open_--; });
    return may && bytes_ <= kMostBytes;
  }

  bool need(int32_t index) {
    if (needed_[index]) return true;
    needed_[index] = true;
    const Storage& storage = *trace_.storages[index];
    if (!storage.lost.empty() || storage.shared != nullptr) return false;
    if (storage.buffer != nullptr) return storage.written_in != trace_.serial;
    open_++;
    return true;
  }

  const Trace& trace_;
  std::vector<bool> needed_;
  int64_t open_ = 0, bytes_ = 0;  // storages whose first node was not met yet
};

// The same nodes as a trace of their own, which makes everything anew. `target` becomes its number of that storage.
Trace part_of(const Trace& trace, const std::vector<uint32_t>& nodes, int32_t& target) {
  Trace part;
  part.device = trace.device;
  std::vector<int32_t> numbers(trace.storages.size(), -1);
  const int32_t wanted = target;
  auto number_of = [&](int32_t index) {
    if (numbers[index] < 0) {
      numbers[index] = static_cast<int32_t>(part.storages.size());
      const StoragePtr& storage = trace.storages[index];
      const bool is_there = storage->buffer != nullptr;
      part.storages.push_back(is_there ? storage : c10::make_intrusive<Storage>(storage->device, storage->nbytes));
      part.live.push_back(is_there || index == wanted);
    }
    return numbers[index];
  };
  std::vector<int64_t> regions(trace.regions.size(), -1);
  for (const uint32_t n : nodes) {
    Node node = trace.nodes[n];
    const auto begin = static_cast<uint32_t>(part.refs.size());
    for (uint32_t r = node.args; r < node.end; r++) {
      ArgRef ref = trace.refs[r];
      if (ref.kind == ArgRef::Kind::Number) {
        part.numbers.push_back(trace.numbers[ref.index]);
        ref.index = static_cast<uint32_t>(part.numbers.size() - 1);
      } else if (ref.kind == ArgRef::Kind::Value) {
        part.values.push_back(trace.values[ref.index]);
        ref.index = static_cast<uint32_t>(part.values.size() - 1);
      } else if (ref.kind == ArgRef::Kind::Region) {
        int64_t& own = regions[ref.index];
        if (own < 0) {
          Region region = trace.regions[ref.index];
          const auto shape = trace.ints.begin() + region.shape;
          region.storage = number_of(region.storage);
          region.shape = static_cast<uint32_t>(part.ints.size());
          part.ints.insert(part.ints.end(), shape, shape + 2 * region.ndim);
          own = static_cast<int64_t>(part.regions.size());
          part.regions.push_back(region);
        }
        ref.index = static_cast<uint32_t>(own);
      }
      part.refs.push_back(ref);
    }
    const uint32_t first = node.args;
    for (uint32_t* position : {&node.args, &node.outs, &node.writes, &node.end}) *position = *position - first + begin;
    part.nodes.push_back(node);
  }
  target = numbers[wanted];
  return part;
}

}  // namespace

std::shared_ptr<Buffer> computed_aside(const at::Tensor& tensor, const char* reason) {
  if (!shares_host_memory()) return nullptr;
  DeviceLock lock;
  Storage* storage = storage_of(tensor.storage().data_ptr());
  const Trace& trace = trace_of(storage->device);
  if (storage->written_in != trace.serial || !trace.refers_to(storage)) return nullptr;
  int32_t target = storage->index;
  Search search(trace);
  if (!search.run(target)) return nullptr;
  looks++;
  Trace part = part_of(trace, search.nodes, target);
  if (run_directly(part)) return nullptr;  // the flush that follows says why
  if (debug_level() >= 1) std::fprintf(stderr, "tiny: %zu nodes computed beside the trace for %s\n", part.nodes.size(), reason);
  return part.storages[target]->buffer;
}

}  // namespace tiny
