// Assertions are tensors of one bool that nobody else sees. Reading values instead would cut a training step in two.
#include "record/assertions.h"

#include <ATen/ops/all.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/le.h>

#include <vector>

#include "python/python.h"
#include "record/call.h"
#include "record/copy.h"
#include "record/recorder.h"

namespace tiny {
namespace {

struct Assertion {
  at::Tensor holds;
  const char* message;
};

// By device; the device's lock guards them.
std::vector<Assertion>* const pending = new std::vector<Assertion>[kMaxDevices];

at::Tensor are_within(const at::Tensor& values, double least, double most) {
  return at::all(at::ge(values, least).logical_and_(at::le(values, most)));
}

bool is_pending(const at::Tensor& tensor) {
  const Storage& storage = *storage_of(tensor.storage().data_ptr());
  return storage.buffer == nullptr || storage.written_in == trace_of(storage.device).serial;
}

}  // namespace

void assert_within(const at::Tensor& tensor, double least, double most, const char* message) {
  if (tensor.numel() == 0) return;
  DeviceLock lock;
  if (!is_pending(tensor) && shares_host_memory()) {
    TORCH_CHECK(are_within(on_host(tensor, message), least, most).item().toBool(), message);
  } else {
    const at::Tensor holds = are_within(tensor, least, most);
    pending[tensor.device().index()].push_back({holds, message});
  }
}

void forget_assertions(c10::DeviceIndex device) { pending[device].clear(); }

void raise_assertions(c10::DeviceIndex device) {
  if (pending[device].empty()) return;
  const char* message = nullptr;
  for (const Assertion& assertion : std::exchange(pending[device], {})) {
    const Storage& storage = *storage_of(assertion.holds.storage().data_ptr());
    if (storage.lost.empty() && !on_host(assertion.holds, assertion.message).item().toBool()) message = assertion.message;
  }
  TORCH_CHECK(message == nullptr, message);
}

}  // namespace tiny
