// How often values were read, or put into memory: between two looks, all that happened is in the trace.
#pragma once

#include <atomic>
#include <cstdint>

namespace tiny {

inline std::atomic<uint64_t> looks{0};

}  // namespace tiny
