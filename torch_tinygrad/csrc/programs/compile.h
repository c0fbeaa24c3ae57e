// Has Python compile traces, and runs what the engine made of them on devices with memory of their own.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "programs/program.h"
#include "record/trace.h"

namespace tiny {

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

}  // namespace tiny
