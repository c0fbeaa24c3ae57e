// Flushing: runs what is pending.
#pragma once

#include <c10/core/Device.h>

namespace tiny {

// Runs everything pending on the device (all devices if negative). With `whole_steps`, the beginning of a step that what is
// pending has repeated so far stays pending, so that a long loop is cut at the same place of its body each time.
void flush(c10::DeviceIndex device, const char* reason, bool whole_steps = false);

// TORCH_TINY_DEBUG: 1 for a line a flush, 2 for a line a step as well.
int debug_level();

}  // namespace tiny
