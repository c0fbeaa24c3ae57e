// The device as PyTorch sees it: indices, the current one, generators, and whether this process may use it.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace tiny {

c10::DeviceIndex device_count();
void set_device_count(c10::DeviceIndex count);
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
void set_current_device_unchecked(c10::DeviceIndex device) noexcept;

// Throws in a process forked from one that used the device.
void check_fork();
bool forked();

struct RandomSlice {
  int64_t seed, offset;
};
// Takes `count` numbers' worth of the generator's stream (the device's default one if `generator` is empty).
RandomSlice take_random(const std::optional<at::Generator>& generator, c10::DeviceIndex device, int64_t count);
const at::Generator& default_generator(c10::DeviceIndex device);

}  // namespace tiny
