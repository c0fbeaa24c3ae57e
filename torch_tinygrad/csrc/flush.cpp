// Flushing: finds the program of a trace by its key, compiles it where there is none, and runs it.
#include <ATen/core/Formatting.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>

#include "device.h"
#include "flush.h"
#include "python.h"
#include "recorder.h"

namespace tiny {
namespace {

using Clock = std::chrono::steady_clock;
double milliseconds(Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

int debug_level() {
  const char* text = std::getenv("TORCH_TINY_DEBUG");
  return text == nullptr ? 0 : std::atoi(text);
}

// Programs of traces that differ only in their numbers and offsets.
struct Entry {
  std::shared_ptr<Program> program;
  std::vector<bool> lifted;
  std::vector<Number> numbers;  // as compiled
  Hash constants;               // of the numbers that are constants in it, and of all offsets
  uint64_t last_use;
};
struct Family {
  std::vector<Entry> entries;
  std::vector<bool> varying;
};

auto& families = *new std::unordered_map<Hash, Family, HashHash>;  // never destroyed: its programs hold Python objects
uint64_t uses = 0;
size_t programs = 0;

Hash constants_of(const Trace& trace, const std::vector<bool>& lifted) {
  Hash hash;
  for (const Region& region : trace.regions) hash.add(static_cast<uint64_t>(region.offset));
  for (size_t i = 0; i < trace.numbers.size(); i++)
    if (!lifted[i]) hash.add(static_cast<uint64_t>(trace.numbers[i].i));
  return hash;
}

Hash key_of(const Trace& trace) {
  Hash key = trace.key;
  key.add(static_cast<uint64_t>(trace.device));
  for (const auto& storage : trace.storages)
    key.add((storage->nbytes << 2) | (storage->live.load(std::memory_order_acquire) ? 1 : 0) | (storage->buffer ? 2 : 0));
  for (const Number& number : trace.numbers) key.add(static_cast<uint64_t>(number.is_float));
  return key;
}

void evict() {
  if (programs <= program_bound()) return;
  Family* family = nullptr;
  size_t oldest = 0;
  for (auto& [key, candidate] : families)
    for (size_t i = 0; i < candidate.entries.size(); i++)
      if (family == nullptr || candidate.entries[i].last_use < family->entries[oldest].last_use) family = &candidate, oldest = i;
  family->entries.erase(family->entries.begin() + static_cast<long>(oldest));
  programs--;
}

Entry* find(Family& family, const Trace& trace) {
  for (Entry& entry : family.entries)
    if (entry.constants == constants_of(trace, entry.lifted)) return &entry;
  return nullptr;
}

Entry& add(Family& family, const Trace& trace) {
  // Numbers that differ from an earlier compile of the same trace become inputs from now on.
  family.varying.resize(trace.numbers.size(), false);
  for (const Entry& entry : family.entries)
    for (size_t i = 0; i < trace.numbers.size(); i++)
      if (!(entry.numbers[i] == trace.numbers[i])) family.varying[i] = true;
  auto program = compile(trace, family.varying);
  std::vector<bool> lifted(trace.numbers.size(), false);
  for (uint32_t position : program->lifted) lifted[position] = true;
  const Hash constants = constants_of(trace, lifted);
  const size_t before = family.entries.size();
  auto superseded = [&](const Entry& old) { return old.lifted != lifted; };
  family.entries.erase(std::remove_if(family.entries.begin(), family.entries.end(), superseded), family.entries.end());
  programs -= before - family.entries.size();
  family.entries.push_back({program, lifted, trace.numbers, constants, 0});
  programs++;
  return family.entries.back();
}

// Something in the trace cannot be compiled. Runs the nodes in smaller and smaller parts until the one to blame stands
// alone. What only it would have written, and what depends on that, is lost; what it would have changed keeps its value.
class Isolation {
 public:
  Isolation(Trace& trace, std::string message) : trace_(trace), message_(std::move(message)), all_(trace.nodes) { trace.keep_all = true; }
  ~Isolation() { trace_.keep_all = false; }

  void run(size_t begin, size_t end) {
    if (begin == end || (end - begin == 1 && reads_lost(all_[begin]))) {
      if (begin != end) lose(all_[begin]);
      return;
    }
    trace_.nodes.clear();
    for (size_t n = begin; n < end; n++)
      if (!reads_lost(all_[n])) {
        trace_.nodes.push_back(all_[n]);
      } else {
        lose(all_[n]);
      }
    try {
      compile(trace_, std::vector<bool>(trace_.numbers.size(), false))->run(trace_);
    } catch (const CompileFailed& failure) {
      if (failure.passing) throw;
      if (end - begin == 1) return lose(all_[begin]);
      const size_t middle = begin + (end - begin) / 2;
      run(begin, middle);
      run(middle, end);
    }
  }

 private:
  template <class F>
  void each_storage(uint32_t begin, uint32_t end, F&& f) {
    for (uint32_t r = begin; r < end; r++)
      if (trace_.refs[r].kind == ArgRef::Kind::Region) f(*trace_.storages[trace_.regions[trace_.refs[r].index].storage]);
  }
  bool reads_lost(const Node& node) {
    bool lost = false;
    each_storage(node.args, node.outs, [&](Storage& storage) { lost |= !storage.lost.empty(); });
    return lost;
  }
  void lose(const Node& node) {
    each_storage(node.outs, node.end, [&](Storage& storage) {
      if (storage.buffer == nullptr) storage.lost = message_;
    });
  }

  Trace& trace_;
  std::string message_;
  std::vector<Node> all_;
};

void flush_trace(Trace& trace, const char* reason) {
  if (trace.nodes.empty()) {
    trace.clear();
    return;
  }
  const auto start = Clock::now();
  Family& family = families[key_of(trace)];
  Entry* entry = find(family, trace);
  const bool hit = entry != nullptr;
  try {
    if (!hit) entry = &add(family, trace);
  } catch (const CompileFailed& failure) {
    if (!failure.passing) {
      const PythonError cause;
      const size_t count = trace.nodes.size();
      Isolation(trace, failure.message).run(0, count);
      trace.clear();
      cause.rethrow();
    }
    throw_python_error();
  }
  entry->last_use = ++uses;
  const auto compiled = Clock::now();
  const std::shared_ptr<Program> program = entry->program;
  program->run(trace);
  const auto done = Clock::now();

  Stats& s = stats();
  s.flushes++;
  (hit ? s.replays : s.compiles)++;
  s.kernels += program->kernels;
  s.bytes_moved += program->bytes_moved;
  for (const auto& [name, count] : program->fallbacks) {
    warn_fallback(name);
    s.fallbacks[name] += count;
  }
  if (const int level = debug_level(); level >= 1) {
    std::fprintf(stderr, "tiny: flush for %s: %zu nodes, %s, %lld kernels, compile %.1f ms, run %.2f ms\n", reason, trace.nodes.size(),
                 hit ? "hit" : "miss", static_cast<long long>(program->kernels), milliseconds(compiled - start), milliseconds(done - compiled));
    if (level >= 2)
      for (const auto& line : program->description) std::fprintf(stderr, "tiny:   %s\n", line.c_str());
  }
  trace.clear();
  evict();
}

}  // namespace

size_t& program_bound() {
  static size_t bound = 1024;
  return bound;
}

void clear_programs() {
  DeviceLock lock;
  families.clear();
  programs = 0;
}

void flush(c10::DeviceIndex device, const char* reason) {
  check_fork();
  DeviceLock lock;
  for (c10::DeviceIndex i = 0; i < device_count(); i++)
    if (device < 0 || device == i) flush_trace(trace_of(i), reason);
}

}  // namespace tiny
