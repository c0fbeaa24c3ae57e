// Devices of which ATen has no kernels: what is not compiled for them runs on the CPU, on copies of their bytes.
//
// There the bytes of a buffer are the device's (`object`), the CPU's (`owner`), or both. Whoever writes one drops the other.
#pragma once

#include <string>

#include "device/storage.h"

namespace tiny {

bool is_staged(c10::DeviceIndex device);
// Whose kernels run what is not compiled: ATen's for the device (`aten_device`), or the CPU's.
c10::Device direct_device(c10::DeviceIndex device);

// Bytes that go up when a program first reads them.
std::shared_ptr<Buffer> cpu_copy(c10::DeviceIndex device, const void* source, size_t nbytes);
// The bytes of a storage for those kernels, copied down if they are on the device alone.
c10::Storage for_aten(Storage& storage);
// ATen is going to write them there.
void drop_device_copy(Storage& storage);
// A program has written them on the device, or they have gone up to it.
void drop_cpu_copy(Storage& storage);

// Bytes that one buffer of the device may have; a storage that outlives its trace must fit.
void set_most_bytes(std::string device, size_t nbytes);
void check_buffer_bytes(size_t nbytes);

}  // namespace tiny
