// Flushing: finds the program of a trace by its key, compiles it where there is none, and runs it.
#include <ATen/core/Formatting.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <tuple>
#include <unordered_map>

#include "device.h"
#include "disk.h"
#include "flush.h"
#include "python.h"
#include "recorder.h"

namespace tiny {
namespace {

using Clock = std::chrono::steady_clock;
double milliseconds(Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

// Regions that lie elsewhere at every flush, in groups that keep their distances.
struct Moves {
  std::vector<uint32_t> group;    // of each region: 0 where it stays, else the number of its group
  std::vector<uint32_t> leaders;  // of each group, counted from 1, the first region
};

// Programs of traces that differ only in their numbers and offsets.
struct Entry {
  std::shared_ptr<Program> program;
  std::vector<bool> lifted;
  std::vector<Number> numbers;  // as compiled
  std::vector<int64_t> places;  // of the regions, in bytes, as compiled
  Moves moves;
  uint64_t last_use;
};
struct Family {
  std::vector<Entry> entries;
  std::vector<bool> varying;
  Moves moves;
};

// With more groups than this, regions do not move as a whole, and a program for these very offsets is better.
constexpr size_t kMaxGroups = 64;

auto& families = *new std::unordered_map<Hash, Family, HashHash>;  // never destroyed: its programs hold Python objects
uint64_t uses = 0;
size_t programs = 0;

int64_t place_of(const Region& region) { return region.offset * static_cast<int64_t>(c10::elementSize(region.dtype)); }

std::vector<int64_t> places_of(const Trace& trace) {
  std::vector<int64_t> places;
  places.reserve(trace.regions.size());
  for (const Region& region : trace.regions) places.push_back(place_of(region));
  return places;
}

std::vector<bool> lifted_in(const Program& program, const Trace& trace) {
  std::vector<bool> lifted(trace.numbers.size(), false);
  for (uint32_t position : program.lifted)
    if (position < lifted.size()) lifted[position] = true;
  return lifted;
}

// Of the numbers that are constants, and of the offsets of what stays.
Hash constants_of(const Trace& trace, const std::vector<bool>& lifted, const Moves& moves) {
  Hash hash;
  for (size_t r = 0; r < trace.regions.size(); r++) {
    const uint32_t group = moves.group.empty() ? 0 : moves.group[r];
    const int64_t from = group == 0 ? 0 : place_of(trace.regions[moves.leaders[group - 1]]);
    hash.add(static_cast<uint64_t>(place_of(trace.regions[r]) - from));
  }
  for (size_t i = 0; i < trace.numbers.size(); i++)
    if (!lifted[i]) hash.add(static_cast<uint64_t>(trace.numbers[i].i));
  return hash;
}

// The groups of `before`, split where regions of this trace went different ways since `places`.
Moves split(const Moves& before, const Trace& trace, const std::vector<int64_t>& places) {
  Moves moves;
  std::map<std::tuple<uint32_t, int32_t, int64_t>, uint32_t> numbers;
  for (size_t r = 0; r < trace.regions.size(); r++) {
    const uint32_t old = before.group.empty() ? 0 : before.group[r];
    const int64_t moved = place_of(trace.regions[r]) - places[r];
    if (old == 0 && moved == 0) {
      moves.group.push_back(0);
      continue;
    }
    const auto [found, is_new] = numbers.try_emplace({old, trace.regions[r].storage, moved}, numbers.size() + 1);
    if (is_new) moves.leaders.push_back(static_cast<uint32_t>(r));
    if (numbers.size() > kMaxGroups) return {};
    moves.group.push_back(found->second);
  }
  return moves.leaders.empty() ? Moves{} : moves;
}

// The trace's numbers, and by how many bytes each group is away from where it was when the program was compiled.
std::vector<Number> inputs_of(const Trace& trace, const Entry& entry) {
  std::vector<Number> numbers = trace.numbers;
  for (uint32_t leader : entry.moves.leaders) {
    Number shift{};
    shift.i = place_of(trace.regions[leader]) - entry.places[leader];
    numbers.push_back(shift);
  }
  return numbers;
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
    if (entry.program->constants == constants_of(trace, entry.lifted, entry.moves)) return &entry;
  return nullptr;
}

// The program from disk, or compiled. Numbers that differ but are constants all the same are checked after reading.
std::pair<std::shared_ptr<Program>, bool> find_or_compile(const Family& family, const Hash& key, const Trace& trace) {
  Hash file = key;
  const Hash constants = constants_of(trace, family.varying, family.moves);
  file.add(constants.a), file.add(constants.b);
  for (bool varies : family.varying) file.add(uint64_t{varies});
  for (uint32_t group : family.moves.group) file.add(uint64_t{group});
  auto constants_in = [&](const Program& program) { return constants_of(trace, lifted_in(program, trace), family.moves); };
  if (auto kept = load_program(file, trace.device); kept != nullptr && kept->constants == constants_in(*kept)) return {kept, true};
  auto program = compile(trace, family.varying, family.moves.group);
  program->constants = constants_in(*program);
  save_program(file, *program);
  return {program, false};
}

Entry& add(Family& family, const Hash& key, const Trace& trace, bool& loaded) {
  // Numbers and offsets that differ from an earlier compile of the same trace become inputs from now on.
  family.varying.resize(trace.numbers.size(), false);
  for (const Entry& entry : family.entries) {
    for (size_t i = 0; i < trace.numbers.size(); i++)
      if (!(entry.numbers[i] == trace.numbers[i])) family.varying[i] = true;
    family.moves = split(family.moves, trace, entry.places);
  }
  std::shared_ptr<Program> program;
  std::tie(program, loaded) = find_or_compile(family, key, trace);
  const std::vector<bool> lifted = lifted_in(*program, trace);
  const size_t before = family.entries.size();
  auto superseded = [&](const Entry& old) { return old.lifted != lifted || old.moves.group != family.moves.group; };
  family.entries.erase(std::remove_if(family.entries.begin(), family.entries.end(), superseded), family.entries.end());
  programs -= before - family.entries.size();
  family.entries.push_back({program, lifted, trace.numbers, places_of(trace), family.moves, 0});
  programs++;
  return family.entries.back();
}

// Something in the trace cannot be compiled. Runs the nodes in smaller and smaller parts until the one to blame stands
// alone. What only it would have written, and what depends on that, is lost; what it would have changed keeps its value.
class Isolation {
 public:
  Isolation(Trace& trace, std::string message) : trace_(trace), message_(std::move(message)), all_(trace.nodes) { trace.keep_all = true; }
  ~Isolation() { trace_.keep_all = false; }

  void lose_all() {
    for (const Node& node : all_) lose(node);
  }

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
      compile(trace_, {}, {})->run(trace_, trace_.numbers);
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
      storage.contents = Contents::unknown();
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
  const Hash key = key_of(trace);
  Family& family = families[key];
  Entry* entry = find(family, trace);
  const bool hit = entry != nullptr;
  bool loaded = false;
  try {
    if (!hit) entry = &add(family, key, trace, loaded);
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
  try {
    program->run(trace, inputs_of(trace, *entry));
  } catch (const c10::Error& error) {
    // A step of ATen's refused its arguments. Some of the program has run already: it must not run again.
    Isolation(trace, error.what_without_backtrace()).lose_all();
    trace.clear();
    throw;
  }
  const auto done = Clock::now();

  Stats& s = stats();
  s.flushes++;
  (hit ? s.replays : loaded ? s.loads : s.compiles)++;
  s.kernels += program->kernels;
  s.bytes_moved += program->bytes_moved;
  for (const auto& [name, count] : program->fallbacks) {
    warn_fallback(name);
    s.fallbacks[name] += count;
  }
  if (const int level = debug_level(); level >= 1) {
    std::fprintf(stderr, "tiny: flush for %s: %zu nodes, %s, %lld kernels, compile %.1f ms, run %.2f ms\n", reason, trace.nodes.size(),
                 hit      ? "hit"
                 : loaded ? "loaded"
                          : "miss",
                 static_cast<long long>(program->kernels), milliseconds(compiled - start), milliseconds(done - compiled));
    if (level >= 2)
      for (size_t i = 0; i < program->description.size(); i++) {
        const std::string time = i < program->times.size() ? c10::str(static_cast<int64_t>(program->times[i]), " us ") : "";
        std::fprintf(stderr, "tiny:   %s%s\n", time.c_str(), program->description[i].c_str());
      }
  }
  trace.clear();
  evict();
}

}  // namespace

int debug_level() {
  const char* text = std::getenv("TORCH_TINY_DEBUG");
  return text == nullptr ? 0 : std::atoi(text);
}

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
