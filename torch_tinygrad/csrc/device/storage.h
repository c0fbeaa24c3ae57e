// Storages of the device: what a c10::StorageImpl's DataPtr refers to, and the bytes behind it once they exist.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "device/buffers.h"
#include "infer/range.h"

namespace tiny {

// A flat array that is written lazily. Nodes refer to it by pointer; tensors through their DataPtr's context.
struct Storage final : c10::intrusive_ptr_target {
  Storage(c10::DeviceIndex device, size_t nbytes) : device(device), nbytes(nbytes) {}
  // DeviceLock (recorder.h) guards every field here that is neither constant nor atomic, and those of the buffers.
  const c10::DeviceIndex device;
  const size_t nbytes;
  std::atomic<bool> live{true};    // a tensor or a storage object can still see it; any thread may be the last
  std::shared_ptr<Buffer> buffer;  // its value, unless it is pending or was never written
  std::shared_ptr<Buffer> shared;  // where the value must lie after each flush, as others see that memory (sharing.h)
  std::string lost;                // why the value will never be there, if computing it failed
  bool shrunk = false;             // it was made shorter than it was: tensors from before may reach beyond it
  Contents contents;               // what is known of its values, once all that is recorded has run

  // Its number in the trace being recorded, valid while `trace` is that trace's serial number.
  uint64_t trace = 0;
  int32_t index = -1;
  uint64_t written_in = 0;  // serial number of the last trace that writes it
};
using StoragePtr = c10::intrusive_ptr<Storage>;

c10::Allocator* allocator();
Storage* storage_of(const c10::DataPtr& data);

constexpr int kMaxDevices = 64;

}  // namespace tiny
