// The few calls from C++ up into Python: what an operator is, metadata from Python kernels, compiling, foreign buffers.
#pragma once

#include <ATen/core/stack.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "program.h"
#include "trace.h"

namespace tiny {

// Sets the Python side up at the device's first use.
void ensure_ready();

struct OpTraits {
  std::vector<size_t> lifts, writes;
  bool random = false, index = false, iterated = false, dynamic = false, refuses = false, pointwise = false;
};
OpTraits op_traits(const std::string& name);

// Thrown by infer_on_meta where PyTorch cannot tell the results' metadata without the values.
struct NoMetaKernel : std::exception {};
void infer_on_meta(const OpInfo& info, torch::jit::Stack& stack);

void warn_fallback(const std::string& name);

// Compiles a trace; `varying` are the positions of numbers that changed since it was last compiled, `group` says which
// regions moved since (0: none, or it is empty), and which of them together.
std::shared_ptr<Program> compile(const Trace& trace, const std::vector<bool>& varying, const std::vector<uint32_t>& group);

// Compiles a trace and all that are like it but for their sizes (sizes.h): `seen` are the integers of some, this one's last.
class SizedProgram;
std::shared_ptr<SizedProgram> compile_sizes(const Trace& trace, const std::vector<bool>& varying,
                                            const std::vector<std::vector<int64_t>>& seen);

// Has another process compile it: its bytes come by `program_ready` (service.h). False where there is no such process. With
// `seen`, those of a program for many sizes.
bool request(const std::string& name, const Trace& trace, const std::vector<bool>& varying, const std::vector<uint32_t>& group,
             const std::vector<std::vector<int64_t>>& seen);

// A program from what its `to_bytes` gave; none where it cannot be made from them.
std::shared_ptr<Program> program_from_bytes(std::string_view bytes, c10::DeviceIndex device);

// Thrown by `compile`; the Python error is kept for throw_python_error.
struct CompileFailed : std::exception {
  std::string message;
  int64_t node = -1;     // the node that could not be lowered, if it was one
  bool passing = false;  // an interrupt, no memory, no compiler: the same trace may compile later
  bool interrupt = false;
};
[[noreturn]] void throw_python_error();  // rethrows the Python error behind the last CompileFailed
void forget_python_error();

// Holds that error while other work is done.
class PythonError {
 public:
  PythonError();
  [[noreturn]] void rethrow() const;

 private:
  _object *type_, *value_, *traceback_;
};

bool is_host(c10::DeviceIndex device);
// Whose kernels ATen can run on the device's memory: the CPU's where that is the host's, CUDA's where PyTorch was built for
// it and shares tinygrad's context. Nothing on other devices.
std::optional<c10::Device> aten_device(c10::DeviceIndex device);
// Called before ATen's kernels run by themselves on memory that programs of the engine use as well.
void begin_direct(c10::DeviceIndex device);

// Buffers. On a device that shares the host's memory these are plain memory; where ATen has kernels it makes them, and
// elsewhere the engine.
std::shared_ptr<Buffer> new_buffer(c10::DeviceIndex device, size_t nbytes);
std::shared_ptr<Buffer> upload(c10::DeviceIndex device, const void* source, size_t nbytes);
void wait_for_device(c10::DeviceIndex device);  // until what was started on it has run
void drop_device_memory();                      // that nothing uses
std::pair<size_t, size_t> device_memory_info(c10::DeviceIndex device);
void download(const Buffer& buffer, size_t offset, void* destination, size_t nbytes);

}  // namespace tiny
