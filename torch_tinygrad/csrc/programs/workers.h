// Threads that share the pieces of a kernel's work with the one that runs it, and that nobody waits for until they have begun.
#pragma once

#include <cstdint>
#include <functional>

namespace tiny {

// Calls `run` with each of 0 .. pieces - 1, on this thread and on those of at most `threads` that are free, and returns when
// all calls have. One caller at a time: the device's lock is held.
void share_out(int64_t pieces, int threads, const std::function<void(int64_t)>& run);

}  // namespace tiny
