// torch.distributed: collectives on tensors of the device are those of the CPU's backend, on the same memory. Where memory
// is the device's own, they are waited for and what they wrote is copied up.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>

#include <algorithm>

#include "device/host_views.h"
#include "python/python.h"
#include "record/call.h"
#include "record/replaced.h"

namespace tiny {

// What DistributedDataParallel times its steps with: recording takes no time, so it is the host's clock.
class Timer final : public c10d::Timer {
 public:
  explicit Timer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const int64_t from = getTimeRef(start), to = getTimeRef(end);
    if (from == c10d::kUnsetTime || to == c10d::kUnsetTime || to < from) return std::nullopt;
    return to - from;
  }
};

namespace {

// A group that was made for the device alone has its backend for the CPU too: it is one of the CPU's.
void provide_cpu_backend(const c10::IValue& value) {
  const auto group = value.toCustomClass<c10d::ProcessGroup>();
  const auto devices = group->getDeviceTypes();
  if (std::find(devices.begin(), devices.end(), c10::Device(c10::kCPU)) != devices.end()) return;
  const auto backend = group->getBackend(c10::DeviceType::PrivateUse1);
  group->setBackend(c10::kCPU, group->getBackendType(), backend);
}

template <class T>
bool is_a(const c10::IValue& value) {
  return value.isObject() && value.type()->isSubtypeOf(*c10::getCustomClassType<c10::intrusive_ptr<T>>());
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Replacements replacements;
  const size_t arguments = op.schema().arguments().size(), base = stack->size() - arguments;
  const std::string& name = op.schema().name();
  for (size_t i = base; i < stack->size(); i++) {
    c10::IValue& value = (*stack)[i];
    if (is_a<c10d::ProcessGroup>(value)) provide_cpu_backend(value);
    replacements.enter(value, [&](const at::Tensor& t) -> Replacements::Made {
      if (!is_tiny(t)) return {t, false};
      return {host_view(t, name.c_str()), !shares_host_memory() && name != "c10d::send"};
    });
  }
  op.callBoxed(stack);
  const bool shares = replacements.empty() || shares_host_memory();
  for (size_t i = base; i < stack->size(); i++) {
    c10::IValue& value = (*stack)[i];
    if (!shares && is_a<c10d::Work>(value)) value.toCustomClass<c10d::Work>()->wait();
    replacements.leave(value, [](const at::Tensor& t) { return t; });
  }
  replacements.copy_back([](const at::Tensor& to, const at::Tensor& from) { to.copy_(from); });
}

// PyTorch's own kernels would hand the CPU's backend tensors whose memory it cannot see. Standing in for them is what is
// meant here: the dispatcher's warning about it says nothing to a user.
struct Silent final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

const bool registered = [] {
  Silent silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  static torch::Library library(torch::Library::IMPL, "c10d", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const char* name :
       {"broadcast_", "allreduce_", "allreduce_coalesced_", "allgather_", "_allgather_base_", "allgather_coalesced_",
        "allgather_into_tensor_coalesced_", "reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "reduce_",
        "gather_", "scatter_", "alltoall_", "alltoall_base_", "barrier", "send", "recv_", "recv_any_source_"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
  return true;
}();

}  // namespace
}  // namespace tiny

namespace c10d {
using TinyTimer = tiny::Timer;
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::PrivateUse1, TinyTimer)
}  // namespace c10d
