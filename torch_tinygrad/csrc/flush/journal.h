// What flushes do, noted while somebody watches: torch.profiler (profiler.cpp) or torch.tiny.explain (explain.cpp).
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace tiny {

struct Trace;
struct Program;

struct StepNote {
  std::string text;    // a program's line for the step, or the operator that ran directly
  int64_t start, end;  // nanoseconds since 1970
};

struct NodeNote {
  std::string op, source, results;  // where the user's code called it, as far as that is known
  int64_t bytes;                    // of what it reads and writes
  bool kept;                        // somebody can still see a result: it must be stored
};

struct FlushNote {
  c10::DeviceIndex device;
  std::string reason, way;
  uint64_t correlation;  // the profiler's number of the range that the flush is
  double compiling;      // milliseconds
  int64_t start, end;
  int64_t kernels, bytes_moved;
  std::vector<NodeNote> nodes;  // for explain alone
  std::vector<StepNote> steps;
};

enum class Watcher : uint8_t { Profiler = 1, Explain = 2 };
extern std::atomic<uint8_t> watchers;

inline bool watched() { return watchers.load(std::memory_order_relaxed) != 0; }
inline bool watched_by(Watcher who) { return (watchers.load(std::memory_order_relaxed) & static_cast<uint8_t>(who)) != 0; }
void watch(Watcher who, bool on);
std::vector<FlushNote> take_notes(Watcher who);  // those of this watcher, which then has none

int64_t now();

// A node was recorded: notes the line of the user's code. Only while explaining, and with the device's lock.
void note_source(const Trace& trace);

// A flush, from its beginning to its end; with the device's lock.
class Noted {
 public:
  Noted(const Trace& trace, const char* reason);
  ~Noted();
  Noted(const Noted&) = delete;
  Noted& operator=(const Noted&) = delete;
  void ran(const char* way, const Program* program, double compiling);

 private:
  bool active_, done_ = false;
};
void note_step(std::string text, int64_t start, int64_t end);  // of the flush that is being noted

// Set by those who watch.
extern uint64_t (*current_correlation)();
extern std::string (*current_source)();

}  // namespace tiny
