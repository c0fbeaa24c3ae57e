// The few calls from C++ up into Python: what an operator is, metadata from Python kernels, the engine's buffers. Compiling
// is in compile.h.
#pragma once

#include <ATen/core/stack.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/buffers.h"
#include "record/op_info.h"

namespace tiny {

struct OpTraits {
  std::vector<size_t> lifts, writes;
  bool random = false, index = false, iterated = false, dynamic = false, refuses = false, pointwise = false;
};
OpTraits op_traits(const std::string& name);

// Thrown by infer_on_meta where PyTorch cannot tell the results' metadata without the values.
struct NoMetaKernel : std::exception {};
void infer_on_meta(const OpInfo& info, torch::jit::Stack& stack);

void warn_fallback(const std::string& name);

bool shares_host_memory();  // one hardware for all devices of a process
// Whose kernels ATen can run on the device's memory: the CPU's where that is the host's, CUDA's where PyTorch was built for
// it and shares tinygrad's context. Nothing on other devices.
std::optional<c10::Device> aten_device(c10::DeviceIndex device);
// Called before ATen's kernels run by themselves on memory that programs of the engine use as well.
void begin_direct(c10::DeviceIndex device);
void wait_for_device(c10::DeviceIndex device);  // until what was started on it has run
void drop_device_memory();                      // that nothing uses
std::pair<size_t, size_t> device_memory_info(c10::DeviceIndex device);

// Buffers that the engine makes.
std::shared_ptr<Buffer> new_engine_buffer(c10::DeviceIndex device, size_t nbytes);
void download_from_engine(const Buffer& buffer, size_t offset, void* destination, size_t nbytes);
std::shared_ptr<Buffer> engine_buffer(c10::DeviceIndex device, size_t nbytes, _object* object);  // takes the object over
_object* engine_object(Buffer& buffer);                                                          // borrowed

}  // namespace tiny
