// Storages of the device: what a c10::StorageImpl's DataPtr refers to, and the bytes behind it once they exist.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "range.h"

struct _object;  // PyObject

namespace tiny {

// The bytes of a storage. On a device whose memory is the host's, `host` points to them; on any other, `object` is the
// engine's own buffer (a Python object, released with the interpreter lock held, at the next flush). Where ATen has kernels
// for such a device, the bytes are ATen's (`owner`), and the engine's buffer over them is made when a program asks for it.
struct Buffer {
  Buffer(c10::DeviceIndex device, size_t nbytes, void* host, _object* object, c10::Storage owner = {})
      : device(device), nbytes(nbytes), host(host), object(object), owner(std::move(owner)) {}
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  const c10::DeviceIndex device;
  const size_t nbytes;
  void* const host;
  _object* object;
  const c10::Storage owner;       // of the bytes, where ATen allocated them
  std::shared_ptr<void> derived;  // what a step keeps of these bytes in another form, until they are written
  bool seen_outside = false;      // others write it too, so that nothing is kept of it
};

// A flat array that is written lazily. Nodes refer to it by pointer; tensors through their DataPtr's context.
struct Storage final : c10::intrusive_ptr_target {
  Storage(c10::DeviceIndex device, size_t nbytes) : device(device), nbytes(nbytes) {}

  const c10::DeviceIndex device;
  const size_t nbytes;
  std::atomic<bool> live{true};    // a tensor or a storage object can still see it
  std::shared_ptr<Buffer> buffer;  // its value, unless it is pending or was never written
  std::shared_ptr<Buffer> shared;  // where the value must lie after each flush, as others see that memory (sharing.h)
  std::string lost;                // why the value will never be there, if computing it failed
  Contents contents;               // what is known of its values, once all that is recorded has run

  // Its number in the trace being recorded, valid while `trace` is that trace's serial number.
  uint64_t trace = 0;
  int32_t index = -1;
  uint64_t written_in = 0;  // serial number of the last trace that writes it
};
using StoragePtr = c10::intrusive_ptr<Storage>;

c10::Allocator* allocator();
Storage* storage_of(const c10::DataPtr& data);

// Memory of devices that share the host's: freed blocks are kept and reused.
std::shared_ptr<Buffer> host_buffer(c10::DeviceIndex device, size_t nbytes);
std::shared_ptr<Buffer> adopted_buffer(c10::DeviceIndex device, size_t nbytes, c10::Storage owner);
std::shared_ptr<Buffer> object_buffer(c10::DeviceIndex device, size_t nbytes, _object* object, c10::Storage owner = {});

// Python objects of buffers that died without the interpreter lock: released here.
void release_objects();
void release_later(_object* object);

constexpr int kMaxDevices = 64;

}  // namespace tiny
