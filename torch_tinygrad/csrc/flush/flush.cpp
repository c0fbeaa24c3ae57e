// Flushing: finds the program of a trace by its key and runs it; where there is none, has it compiled or runs it directly.
#include "flush/flush.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "device/device.h"
#include "device/sharing.h"
#include "flush/direct.h"
#include "flush/journal.h"
#include "flush/periods.h"
#include "flush/pieces.h"
#include "flush/policy.h"
#include "flush/staged.h"
#include "programs/compile.h"
#include "programs/disk.h"
#include "programs/programs.h"
#include "programs/service.h"
#include "python/python.h"
#include "record/assertions.h"
#include "record/recorder.h"
#include "sizes/many_sizes.h"

namespace tiny {
namespace {

using Clock = std::chrono::steady_clock;
double milliseconds(Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

// Requests of a family that may fail before it is not asked for again.
constexpr uint32_t kMaxRefusals = 3;

constexpr const char* kWays[] = {"hit", "miss", "loaded", "direct"};

bool fallback_is_error() {
  const char* text = std::getenv("TORCH_TINY_FALLBACK");
  return text != nullptr && std::string_view(text) == "error";
}

void note_failure(const std::string& reason) { stats().not_compiled[reason.substr(0, reason.find('\n'))]++; }

// Finds the entry that a trace is run with, or none where it is run directly.
class Search {
 public:
  // `like` is a trace of the same nodes that is run before it or after it: what differs between them becomes an input at once.
  Search(const Trace& trace, Mode mode, const Trace* like)
      : inputs(Inputs::of(trace)), trace_(trace), like_(like), mode_(mode), key_(key_of(trace)), family_(family_of(key_, trace)) {}

  Entry* run() {
    if (Entry* entry = family_.find(trace_, inputs)) {
      if (mode_ == Mode::Auto) look_for_rival(*entry, trace_, key_, inputs);
      return entry;
    }
    if (Entry* entry = from_service()) return entry;
    if (Entry* entry = find_of_many_sizes(family_, trace_, mode_, inputs, way)) return entry;
    widen();
    name_ = name_of(key_, family_.varying, inputs);
    if (Entry* entry = from_disk()) return entry;
    if (waits_for_another_size(family_, trace_, mode_)) return note_sight(family_, inputs), nullptr;
    if (mode_ == Mode::Always || is_cheap(trace_) || (is_staged(trace_.device) && is_heavy(trace_))) return compiled();
    const bool came_again = family_.sights >= family_.next_ask;
    if (came_again && family_.request == nullptr && family_.refusals < kMaxRefusals) {
      if (!ask_for_program(name_, trace_, family_.varying.numbers, family_.varying.moves.group)) return compiled();
      family_.request = std::make_unique<Request>(Request{name_, inputs, family_.varying});
    }
    note_sight(family_, inputs);
    return nullptr;
  }

  const Inputs inputs;
  Way way = Way::Replay;

 private:
  // Numbers and offsets that differ from those seen before become inputs from now on.
  void widen() {
    for (const Entry& entry : family_.entries) family_.varying.widen(trace_, entry.inputs, inputs);
    if (!family_.seen.numbers.empty() || !family_.seen.offsets.empty()) family_.varying.widen(trace_, family_.seen, inputs);
    if (like_ != nullptr) family_.varying.widen(trace_, Inputs::of(*like_), inputs);
  }

  Entry* from_service() {
    if (family_.request == nullptr) return nullptr;
    std::optional<Answer> answer = take_answer(family_.request->name, trace_.device);
    if (!answer) return nullptr;
    const std::unique_ptr<Request> request = std::move(family_.request);
    if (answer->program == nullptr) {
      family_.refusals += answer->passing ? 0 : 1;
      family_.next_ask = 2 * family_.sights + 1;
      note_failure(answer->failure);
      if (debug_level() >= 1) std::fprintf(stderr, "tiny: not compiled: %s\n", answer->failure.c_str());
      return nullptr;
    }
    note_compiled_for(*answer->program, request->inputs, request->varying);
    save_program(request->name, *answer->program);
    add_program(family_, answer->program, request->inputs, request->varying);
    Entry* entry = family_.find(trace_, inputs);  // its numbers may have changed since
    if (entry != nullptr) way = Way::Compile;
    return entry;
  }

  Entry* from_disk() {
    const auto kept = load_program(name_, trace_.device);
    // Numbers that differ but are constants all the same are checked after reading.
    if (kept == nullptr || !kept->fits(trace_) || !has_constants(*kept, inputs, family_.varying)) return nullptr;
    way = Way::Load;
    return &add_program(family_, kept, inputs, family_.varying);
  }

  Entry* compiled() {
    auto program = compile(trace_, family_.varying.numbers, family_.varying.moves.group);
    note_compiled_for(*program, inputs, family_.varying);
    save_program(name_, *program);
    way = Way::Compile;
    return &add_program(family_, std::move(program), inputs, family_.varying);
  }

  const Trace& trace_;
  const Trace* like_;
  const Mode mode_;
  const Hash key_;
  Family& family_;
  Hash name_;
};

void print_line(const char* reason, const Trace& trace, Way way, const Program* program, Clock::duration compiling,
                Clock::duration running) {
  const int level = debug_level();
  if (level < 1) return;
  std::fprintf(stderr, "tiny: flush for %s: %zu nodes, %s, %lld kernels, compile %.1f ms, run %.2f ms\n", reason, trace.nodes.size(),
               kWays[static_cast<int>(way)], program ? static_cast<long long>(program->kernels) : 0, milliseconds(compiling),
               milliseconds(running));
  if (level < 2 || program == nullptr) return;
  for (size_t i = 0; i < program->description.size(); i++) {
    const std::string time = i < program->times.size() ? c10::str(static_cast<int64_t>(program->times[i]), " us ") : "";
    std::fprintf(stderr, "tiny:   %s%s\n", time.c_str(), program->description[i].c_str());
  }
}

void count(Way way, const Program& program) {
  Stats& s = stats();
  s.flushes++;
  (way == Way::Replay ? s.replays : way == Way::Load ? s.loads : s.compiles)++;
  s.kernels += program.kernels;
  s.bytes_moved += program.bytes_moved;
  for (const auto& [name, times] : program.fallbacks) s.fallbacks[name] += times;
  for (const auto& [name, times] : program.fallbacks) warn_fallback(name);  // which may raise
}

// What a profiler shows of a flush on the host's side.
class ProfiledRange {
 public:
  explicit ProfiledRange(const char* reason) {
    if (auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION))
      range_.emplace(std::move(*callbacks)).before(c10::str("tiny::flush for ", reason));
  }

 private:
  std::optional<at::RecordFunction> range_;
};

template <class F>
std::exception_ptr raised_by(const F& f) {
  try {
    f();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// Whether ATen's kernels one by one are as good as the program: it fuses nothing, is too short for a graph, and, where memory
// is the device's own, Python starts it.
bool saves_nothing(const Program& program, const Trace& trace) {
  return aten_device(trace.device) && !shares_host_memory() && program.kernels < kLeastGraph &&
         program.kernels >= static_cast<int64_t>(trace.nodes.size());
}

bool reads_lost(const Trace& trace) {
  return std::any_of(trace.storages.begin(), trace.storages.end(), [](const StoragePtr& storage) { return !storage->lost.empty(); });
}

// Everything that the trace writes is lost, or would be old: a part of it has run already.
void lose_all(const Trace& trace, const std::string& message) {
  for (const Node& node : trace.nodes)
    each_region(trace, node.outs, node.end, [&](const Region& region) {
      Storage& storage = *trace.storages[region.storage];
      storage.contents = Contents::unknown();
      storage.lost = message;
    });
}

// Runs a trace and gives the error that is to be raised after it, if there is one. Throws where nothing has run and all of it
// stays pending. `like` is another trace of the same nodes, if one is at hand.
std::exception_ptr run_trace(Trace& trace, const char* reason, const Trace* like = nullptr) {
  ProfiledRange range(reason);
  Noted noted(trace, reason);
  std::optional<at::DisableRecordFunctionGuard> steps_are_noted;  // and not ATen's operators inside them as well
  if (watched_by(Watcher::Profiler)) steps_are_noted.emplace();
  const auto start = Clock::now();
  const Mode mode = mode_for(trace.device);
  std::optional<Search> search;
  Entry* entry = nullptr;
  std::optional<PythonError> cause;
  // Programs do not know that an earlier piece of the trace lost what they read.
  if (mode != Mode::Never && !reads_lost(trace)) {
    try {
      entry = search.emplace(trace, mode, like).run();
    } catch (const CompileFailed& failure) {
      if (failure.interrupt) throw_python_error();
      cause.emplace();
      note_failure(failure.message);
    }
  }
  const auto compiled = Clock::now();
  std::shared_ptr<Program> program;
  if (entry != nullptr && !(mode == Mode::Auto && saves_nothing(*entry->program, trace))) {
    note_use(*entry);
    program = entry->contest && entry->contest->is_rivals_turn() ? entry->contest->rival : entry->program;
    program->started = false;
    try {
      program->run(trace, arguments_of(search->inputs, *entry));
    } catch (const c10::Error& error) {
      if (program->started || is_staged(trace.device)) {
        // A step of ATen's failed, and some of the program has run already: it must not run again. Or the device is full,
        // and what would be computed in the CPU's memory could not go back to it.
        lose_all(trace, error.what_without_backtrace());
        return std::current_exception();
      }
      program = nullptr;  // no memory for all of it at once: nothing has run yet
    }
  }
  if (program != nullptr) {
    keep_in_place(trace);
    const auto done = Clock::now();
    if (entry->contest && entry->contest->rival) note_turn(*entry, milliseconds(done - compiled));
    noted.ran(kWays[static_cast<int>(search->way)], program.get(), milliseconds(compiled - start));
    const std::exception_ptr forbidden = raised_by([&] { count(search->way, *program); });
    print_line(reason, trace, search->way, program.get(), compiled - start, done - compiled);
    evict_programs();
    return forbidden;
  }
  stats().flushes++, stats().direct++;
  const std::exception_ptr refusal = run_directly(trace);
  keep_in_place(trace);
  noted.ran(kWays[static_cast<int>(Way::Direct)], nullptr, milliseconds(compiled - start));
  print_line(reason, trace, Way::Direct, nullptr, compiled - start, Clock::now() - compiled);
  if (refusal) return refusal;
  return cause && fallback_is_error() ? raised_by([&] { cause->rethrow(); }) : nullptr;
}

// Runs the pieces of a trace one after the other. Memory that no later one needs is given back.
std::exception_ptr run_pieces(Trace& trace, const Uses& uses, const std::vector<size_t>& ends, const char* reason) {
  std::exception_ptr error;
  if (shares_host_memory()) allocate_filled(trace, uses);
  Pieces pieces(trace, uses);
  Trace before, piece, next = pieces.take(ends[0]);
  for (size_t i = 0; i < ends.size(); i++) {
    before = std::move(piece);
    piece = std::move(next);
    next = i + 1 < ends.size() ? pieces.take(ends[i + 1]) : Trace();
    const Trace* like = next.key == piece.key ? &next : before.key == piece.key ? &before : nullptr;
    try {
      const std::exception_ptr raised = run_trace(piece, reason, like);
      if (!error) error = raised;
    } catch (...) {
      keep_from(trace, uses, i == 0 ? 0 : ends[i - 1]);
      throw;
    }
    for (size_t s = 0; s < piece.storages.size(); s++)
      if (!piece.live[s]) piece.storages[s]->buffer.reset();
  }
  return error;
}

void flush_trace(Trace& trace, const char* reason, bool whole_steps) {
  trace.note_live();
  if (!may_compile(trace.device) || !may_repeat(trace, whole_steps)) {
    const std::exception_ptr error = trace.nodes.empty() ? nullptr : run_trace(trace, reason);
    trace.clear();
    if (error) std::rethrow_exception(error);
    return;
  }
  const Uses uses(trace);
  Cuts cuts = cuts_of(trace, uses, whole_steps);
  const bool keeps_step = whole_steps && cuts.ends_in_step;
  if (keeps_step) cuts.ends.pop_back();
  const std::exception_ptr error = cuts.ends.empty() ? run_trace(trace, reason) : run_pieces(trace, uses, cuts.ends, reason);
  if (keeps_step) {
    keep_from(trace, uses, cuts.ends.back());
  } else {
    trace.clear();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace

int debug_level() {
  const char* text = std::getenv("TORCH_TINY_DEBUG");
  return text == nullptr ? 0 : std::atoi(text);
}

void flush(c10::DeviceIndex device, const char* reason, bool whole_steps) {
  check_fork();
  DeviceLock lock;
  for (c10::DeviceIndex i = 0; i < device_count(); i++)
    if (device < 0 || device == i) {
      try {
        flush_trace(trace_of(i), reason, whole_steps);
      } catch (...) {
        if (trace_of(i).nodes.empty()) forget_assertions(i);
        throw;
      }
      raise_assertions(i);
    }
}

}  // namespace tiny
