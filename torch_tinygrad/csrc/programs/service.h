// Programs that another process compiles: what was asked for, and what came back.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "programs/program.h"
#include "record/hash.h"

namespace tiny {

// What came of a request. Neither: it is being compiled.
struct Answer {
  std::shared_ptr<Program> program;
  std::string failure;
  bool passing = false;  // the same request may succeed later
};

// Asks for a program to be compiled under a name, with `seen` for one of many sizes. False where no process can be had: then
// it is compiled in this one.
bool ask_for_program(const Hash& name, const Trace& trace, const std::vector<bool>& varying, const std::vector<uint32_t>& group,
                     const std::vector<std::vector<int64_t>>& seen = {});

// What came of a request as it was sent.
struct Reply {
  std::string program, failure;
  bool passing = false;
};

// The answer to a request, once there is one; it is given once.
std::optional<Reply> take_reply(const Hash& name);
std::optional<Answer> take_answer(const Hash& name, c10::DeviceIndex device);

size_t requests_pending();

// Called by the process's other side, in any thread.
void program_ready(const std::string& name, std::string bytes);
void program_failed(const std::string& name, std::string reason, bool passing);

}  // namespace tiny
