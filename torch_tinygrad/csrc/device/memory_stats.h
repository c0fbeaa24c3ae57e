// How much memory each device has in use, had at most, and may have.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <utility>

namespace tiny {

// Notes a buffer that was made, or, with a negative number of bytes, one that is gone.
void count_buffer(c10::DeviceIndex device, int64_t nbytes);

c10::CachingDeviceAllocator::DeviceStats device_stats(c10::DeviceIndex device);
void reset_peak(c10::DeviceIndex device);
void reset_accumulated(c10::DeviceIndex device);

// Bytes that are free now and all there are, as the system or the device's driver tells.
std::pair<size_t, size_t> memory_info(c10::DeviceIndex device);

// Bytes that this process may have of the device's memory; all of it from the start.
void set_memory_limit(c10::DeviceIndex device, size_t nbytes);
void check_memory_limit(c10::DeviceIndex device, size_t nbytes);  // before so many more are taken

}  // namespace tiny
