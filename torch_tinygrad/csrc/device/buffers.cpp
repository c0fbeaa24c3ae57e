#include "device/buffers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <Python.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "device/host_memory.h"
#include "device/memory_stats.h"
#include "flush/staged.h"
#include "operators/kernels_only.h"
#include "python/python.h"

namespace tiny {
namespace {

// Never destroyed: buffers and programs may outlive every static object.
std::mutex& released_mutex = *new std::mutex;
std::vector<PyObject*>& released = *new std::vector<PyObject*>;

at::Tensor bytes_at(const void* address, size_t nbytes) {
  return at::from_blob(const_cast<void*>(address), {static_cast<int64_t>(nbytes)}, at::TensorOptions().dtype(at::kByte));
}

}  // namespace

at::Tensor bytes_of(const Buffer& buffer, size_t offset, size_t nbytes) {
  return at::empty({0}, at::TensorOptions().device(buffer.owner.device()).dtype(at::kByte))
      .set_(buffer.owner, static_cast<int64_t>(offset), {static_cast<int64_t>(nbytes)}, {1});
}

Buffer::~Buffer() {
  count_buffer(device, -static_cast<int64_t>(nbytes));
  if (host != nullptr && !owner) give_host_memory(host, nbytes);
  if (object != nullptr) release_later(object);
}

void release_later(PyObject* object) {
  std::lock_guard<std::mutex> guard(released_mutex);
  released.push_back(object);
}

std::shared_ptr<Buffer> host_buffer(c10::DeviceIndex device, size_t nbytes) {
  void* block = take_host_memory(nbytes);
  count_buffer(device, static_cast<int64_t>(nbytes));
  return std::make_shared<Buffer>(device, nbytes, block, nullptr);
}

std::shared_ptr<Buffer> adopted_buffer(c10::DeviceIndex device, size_t nbytes, c10::Storage owner) {
  count_buffer(device, static_cast<int64_t>(nbytes));
  void* const host = shares_host_memory() ? owner.mutable_data() : nullptr;
  return std::make_shared<Buffer>(device, nbytes, host, nullptr, std::move(owner));
}

std::shared_ptr<Buffer> object_buffer(c10::DeviceIndex device, size_t nbytes, PyObject* object, c10::Storage owner) {
  count_buffer(device, static_cast<int64_t>(nbytes));
  return std::make_shared<Buffer>(device, nbytes, nullptr, object, std::move(owner));
}

void release_objects() {
  std::vector<PyObject*> objects;
  {
    std::lock_guard<std::mutex> guard(released_mutex);
    objects.swap(released);
  }
  for (PyObject* object : objects) Py_DECREF(object);
}

std::shared_ptr<Buffer> new_buffer(c10::DeviceIndex device, size_t nbytes) {
  if (shares_host_memory()) return host_buffer(device, nbytes);
  check_memory_limit(device, nbytes);
  if (const auto on = aten_device(device)) {
    const KernelsOnly kernels_only;
    return adopted_buffer(device, nbytes,
                          at::empty({static_cast<int64_t>(nbytes)}, at::TensorOptions().device(*on).dtype(at::kByte)).storage());
  }
  return new_engine_buffer(device, nbytes);
}

std::shared_ptr<Buffer> upload(c10::DeviceIndex device, const void* source, size_t nbytes) {
  if (shares_host_memory()) {
    auto buffer = host_buffer(device, nbytes);
    std::memcpy(buffer->host, source, nbytes);
    return buffer;
  }
  check_memory_limit(device, nbytes);
  if (aten_device(device)) {
    const KernelsOnly kernels_only;
    auto buffer = new_buffer(device, nbytes);
    // From ordinary memory, which has been read when this returns: nothing the device still does is waited for.
    bytes_of(*buffer, 0, nbytes).copy_(bytes_at(source, nbytes), /*non_blocking=*/true);
    return buffer;
  }
  return cpu_copy(device, source, nbytes);
}

void download(const Buffer& buffer, size_t offset, void* destination, size_t nbytes) {
  if (buffer.host != nullptr) {
    std::memcpy(destination, static_cast<const char*>(buffer.host) + offset, nbytes);
    return;
  }
  // No program of the engine has written it, or these bytes are the same.
  if (buffer.object == nullptr || (buffer.owner && is_staged(buffer.device))) {
    const KernelsOnly kernels_only;
    bytes_at(destination, nbytes).copy_(bytes_of(buffer, offset, nbytes));
    return;
  }
  download_from_engine(buffer, offset, destination, nbytes);
}

}  // namespace tiny
