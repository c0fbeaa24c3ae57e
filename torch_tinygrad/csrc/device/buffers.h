// The bytes behind storages: the host's memory, ATen's on another device, or the engine's own.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <memory>

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

// Memory of devices that share the host's: freed blocks are kept and reused.
std::shared_ptr<Buffer> host_buffer(c10::DeviceIndex device, size_t nbytes);
std::shared_ptr<Buffer> adopted_buffer(c10::DeviceIndex device, size_t nbytes, c10::Storage owner);
std::shared_ptr<Buffer> object_buffer(c10::DeviceIndex device, size_t nbytes, _object* object, c10::Storage owner = {});

// On a device that shares the host's memory these are plain memory; where ATen has kernels it makes them, and elsewhere the
// engine.
std::shared_ptr<Buffer> new_buffer(c10::DeviceIndex device, size_t nbytes);
std::shared_ptr<Buffer> upload(c10::DeviceIndex device, const void* source, size_t nbytes);
void download(const Buffer& buffer, size_t offset, void* destination, size_t nbytes);

// Where ATen allocated them: some of the bytes, as a tensor of them.
at::Tensor bytes_of(const Buffer& buffer, size_t offset, size_t nbytes);

// Python objects of buffers that died without the interpreter lock: released here.
void release_objects();
void release_later(_object* object);

}  // namespace tiny
