// Flushing: runs what is pending.
#pragma once

#include <c10/core/Device.h>

namespace tiny {

// Runs everything pending on the device (all devices if negative).
void flush(c10::DeviceIndex device, const char* reason);

// TORCH_TINY_DEBUG: 1 for a line a flush, 2 for a line a step as well.
int debug_level();

}  // namespace tiny
