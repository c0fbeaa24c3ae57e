#include "programs/service.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <set>
#include <unordered_map>

#include "programs/compile.h"
#include "python/python.h"

namespace tiny {
namespace {

// Never destroyed: the reader's thread may outlive every static object.
std::mutex& mutex = *new std::mutex;
auto& pending = *new std::set<std::string>;
auto& replies = *new std::unordered_map<std::string, Reply>;

void keep(const std::string& name, Reply reply) {
  std::lock_guard<std::mutex> guard(mutex);
  if (pending.erase(name) > 0) replies[name] = std::move(reply);
}

}  // namespace

bool ask_for_program(const Hash& hash, const Trace& trace, const std::vector<bool>& varying, const std::vector<uint32_t>& group,
                     const std::vector<std::vector<int64_t>>& seen) {
  const std::string name = hash.bytes();
  {
    std::lock_guard<std::mutex> guard(mutex);
    pending.insert(name);
  }
  if (request(name, trace, varying, group, seen)) return true;
  std::lock_guard<std::mutex> guard(mutex);
  pending.erase(name);
  return false;
}

std::optional<Reply> take_reply(const Hash& hash) {
  std::lock_guard<std::mutex> guard(mutex);
  const auto it = replies.find(hash.bytes());
  if (it == replies.end()) return std::nullopt;
  Reply reply = std::move(it->second);
  replies.erase(it);
  return reply;
}

std::optional<Answer> take_answer(const Hash& hash, c10::DeviceIndex device) {
  std::optional<Reply> reply = take_reply(hash);
  if (!reply) return std::nullopt;
  if (!reply->failure.empty()) return Answer{nullptr, std::move(reply->failure), reply->passing};
  std::shared_ptr<Program> program = program_from_bytes(reply->program, device);
  if (program == nullptr) return Answer{nullptr, "its bytes are damaged"};
  return Answer{std::move(program)};
}

size_t requests_pending() {
  std::lock_guard<std::mutex> guard(mutex);
  return pending.size();
}

void program_ready(const std::string& name, std::string bytes) { keep(name, {std::move(bytes), {}}); }
void program_failed(const std::string& name, std::string reason, bool passing) {
  keep(name, {{}, reason.empty() ? "no reason given" : std::move(reason), passing});
}

}  // namespace tiny
