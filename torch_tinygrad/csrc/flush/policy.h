// Which way a trace is run: compiled when it is first seen, or directly until it has come again and its program is ready.
#pragma once

#include "record/trace.h"

namespace tiny {

// Steps from which on a device that has graphs launches a part of a program as one: updating and launching a graph takes longer
// than launching fewer.
constexpr int64_t kLeastGraph = 4;

enum class Mode : uint8_t {
  Auto,    // directly at first, compiled behind when it comes again
  Always,  // compiled when first seen
  Never,   // directly
  Mixed,   // each flush draws one of the two ways: for tests
};

Mode compile_mode();  // as set by the user
void set_compile_mode(Mode mode);

// The mode that holds for a device now: where results must repeat bit by bit, the two ways are not mixed.
Mode mode_for(c10::DeviceIndex device);
bool may_compile(c10::DeviceIndex device);

// Whether compiling costs less than it saves at the first run: many nodes of few kinds that fill parts of a storage become
// one kernel.
bool is_cheap(const Trace& trace);

// Whether the CPU would take seconds for it: on a device whose direct way is the CPU it is compiled at once.
bool is_heavy(const Trace& trace);

}  // namespace tiny
