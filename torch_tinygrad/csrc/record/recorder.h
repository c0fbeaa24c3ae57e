// The recorder: every operator that is not a view becomes a node of the device's trace.
#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <map>
#include <mutex>
#include <string>

#include "record/trace.h"

namespace tiny {

// One lock for recording, compiling and running. Nobody waits for it while holding the interpreter lock, so whoever
// holds it may take the interpreter lock.
class DeviceLock {
 public:
  DeviceLock();
  ~DeviceLock();
  DeviceLock(const DeviceLock&) = delete;
  DeviceLock& operator=(const DeviceLock&) = delete;
};

struct Stats {
  int64_t nodes = 0, flushes = 0, compiles = 0, replays = 0, loads = 0, direct = 0, kernels = 0, bytes_moved = 0;
  std::map<std::string, int64_t> fallbacks;
  std::map<std::string, int64_t> not_compiled;  // reason → traces
  std::map<std::string, int64_t> not_variable;  // traces that have no one program for many sizes, by reason
};
Stats& stats();

Trace& trace_of(c10::DeviceIndex device);
bool recorder_used();

void record(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void record_op(const char* name, const char* overload, torch::jit::Stack& stack);

// Flushes, and makes sure the tensor's storage has a buffer.
Buffer& realize(const at::Tensor& tensor, const char* reason);

at::Tensor make_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::DeviceIndex device);
void resize_storage(const c10::Storage& storage, size_t nbytes);
void check_readable(const Storage& storage);
void check_inside(const at::Tensor& tensor);  // of a storage that was made shorter, which the CPU reads and writes beyond
// A backward pass runs on the thread that asks for it, as the CPU's does, and not on one that autograd keeps for the device:
// nothing here waits for a device, and handing over costs more than small steps have, most where other processes use the cores.
void keep_backward_here();

// Of an operator that runs on the CPU; it is warned about once.
void count_fallback(const std::string& name);

struct Bounds {
  size_t nodes = 131072;             // pending nodes at most
  size_t soft_nodes = 1024;          // an upload flushes from here on: loops then cut their trace at the same place
  int64_t bytes = int64_t{2} << 30;  // bytes of pending results at most
};
Bounds& bounds();

}  // namespace tiny
