// Records operators: checks them, infers their outputs (with a cache), makes those, appends a node.
#include "record/recorder.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <Python.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DeviceGuard.h>

#include <atomic>
#include <optional>

#include "device/device.h"
#include "device/types.h"
#include "flush/flush.h"
#include "infer/infer.h"
#include "operators/layouts.h"
#include "python/python.h"
#include "record/append.h"
#include "record/call.h"
#include "record/looks.h"
#include "refuse/indices.h"
#include "refuse/numbers.h"

namespace tiny {
namespace {

std::recursive_mutex device_mutex;
std::atomic<bool> used{false};

// Serial numbers of traces are unique over all devices: each device counts in steps of kMaxDevices.
Trace* make_traces() {
  auto* traces = new Trace[kMaxDevices];
  for (int i = 0; i < kMaxDevices; i++) traces[i].serial = i + 1, traces[i].device = static_cast<c10::DeviceIndex>(i);
  return traces;
}
Trace* const traces = make_traces();

// Autograd raises the versions of tensors that are written, but not of those in lists.
void bump_versions_of_lists(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  if (!info.writes) return;
  for (size_t i = 0; i < args.size(); i++) {
    if (!info.args[i].write || info.args[i].kind != OpInfo::Kind::TensorList || args[i].isNone()) continue;
    for (const auto& v : args[i].toListRef())
      if (!v.toTensor().is_inference()) v.toTensor().unsafeGetTensorImpl()->bump_version();
  }
}

// Stand-ins begin their storages, unless they had to alias: `offset` is where the real base begins.
at::Tensor view_of(const at::Tensor& base, const Shape& shape, int64_t offset) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(),
                                                             c10::scalarTypeToTypeMeta(shape.dtype));
  view.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes, shape.strides, shape.offset + offset);
  return view;
}

void resize_written(const at::Tensor& tensor, const Shape& shape) {
  at::native::resize_output(tensor, shape.sizes);
  if (tensor.strides() != at::IntArrayRef(shape.strides))
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes, shape.strides, tensor.storage_offset());
}

}  // namespace

// ---- the lock --------------------------------------------------------------------------------------------------

DeviceLock::DeviceLock() {
  if (device_mutex.try_lock()) return;
  if (Py_IsInitialized() && PyGILState_Check()) {
    PyThreadState* state = PyEval_SaveThread();
    device_mutex.lock();
    PyEval_RestoreThread(state);
  } else {
    device_mutex.lock();
  }
}
DeviceLock::~DeviceLock() { device_mutex.unlock(); }

Stats& stats() {
  static Stats all;
  return all;
}
Bounds& bounds() {
  static Bounds all;
  return all;
}
bool recorder_used() { return used; }
Trace& trace_of(c10::DeviceIndex device) { return traces[device]; }

// ---- entry points ----------------------------------------------------------------------------------------------

at::Tensor make_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::DeviceIndex device) {
  check_type(dtype);
  const c10::DeviceIndex previous = current_device();
  if (device != previous) set_current_device(device);
  at::Tensor t = at::detail::empty_strided_generic(sizes, strides, allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
  if (device != previous) set_current_device(previous);
  return t;
}

void keep_backward_here() {
  c10::AutogradState& state = c10::AutogradState::get_tls_state();
  if (state.get_multithreading_enabled()) state.set_multithreading_enabled(false);
}

void check_readable(const Storage& storage) {
  TORCH_CHECK(storage.lost.empty(), "tiny: this tensor has no value, because computing it failed earlier: ", storage.lost);
}

void check_inside(const at::Tensor& tensor) {
  const Storage& storage = *storage_of(tensor.storage().data_ptr());
  if (!storage.shrunk) return;
  const size_t needed =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.dtype().itemsize(), tensor.storage_offset());
  TORCH_CHECK(needed <= storage.nbytes, "tiny: a tensor of shape ", tensor.sizes(), " needs ", needed,
              " bytes of its storage, which was resized to ", storage.nbytes);
}

void count_fallback(const std::string& name) {
  warn_fallback(name);
  DeviceLock lock;
  stats().fallbacks[name]++;
}

namespace {

// Whether what is made like a tensor is to lie on another device: the composite kernel makes it there.
bool is_made_elsewhere(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  if (info.device < 0 || args[info.device].isNone() || info.op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return false;
  const c10::Device wanted = args[info.device].toDevice();
  for (const auto& value : args) {
    if (!value.isTensor() || !is_tiny(value.toTensor())) continue;
    return !wanted.is_privateuseone() || (wanted.has_index() ? wanted.index() : current_device()) != value.toTensor().device().index();
  }
  return false;
}

}  // namespace

void record(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_fork();
  keep_backward_here();
  used = true;
  const OpInfo& info = op_info(op);
  const size_t count = info.args.size(), base = stack->size() - count;
  if (is_made_elsewhere(info, torch::jit::last(*stack, count)))
    return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  Call call{info};
  try {
    gather(call, *stack, base);
  } catch (const NoMetaKernel&) {
    return run_on_cpu(op, stack);
  }
  c10::DeviceGuard guard(c10::Device(c10::DeviceType::PrivateUse1, call.device));
  {
    DeviceLock lock;
    for (const auto& t : call.tensors) check_readable(*storage_of(t.storage().data_ptr()));
  }
  std::shared_ptr<const Inferred> inferred;
  try {
    inferred = cached_inference(call, torch::jit::last(*stack, count));
  } catch (const NoMetaKernel&) {
    return run_on_cpu(op, stack);
  }

  check_numbers(call, *inferred, torch::jit::last(*stack, count));
  check_indices(call, torch::jit::last(*stack, count));
  if (info.check != nullptr) info.check(call, torch::jit::last(*stack, count));
  for (const auto& [tensor, shape] : inferred->resized) resize_written(call.tensors[tensor], shape);
  for (const auto& t : call.tensors) check_inside(t);
  std::vector<at::Tensor> fresh;
  torch::jit::Stack results;
  auto make = [&](const Inferred::Result& result) -> at::Tensor {
    using Kind = Inferred::Result::Kind;
    switch (result.kind) {
      case Kind::Undefined:
        fresh.emplace_back();
        return {};
      case Kind::Argument:
        return call.tensors[result.tensor];
      case Kind::View:
        return view_of(call.tensors[result.tensor], result.shape, call.aliased ? 0 : call.tensors[result.tensor].storage_offset());
      default:
        fresh.push_back(make_tensor(result.shape.sizes, result.shape.strides, result.shape.dtype, call.device));
        return fresh.back();
    }
  };
  for (const auto& ret : inferred->returns) {
    if (ret.is_value) {
      results.push_back(ret.value);
    } else if (ret.is_list) {
      c10::List<at::Tensor> list;
      for (const auto& result : ret.tensors) list.push_back(make(result));
      results.emplace_back(std::move(list));
    } else {
      results.emplace_back(make(ret.tensors[0]));
    }
  }
  bump_versions_of_lists(info, torch::jit::last(*stack, count));
  std::optional<DeviceLock> alone;  // what other threads record does not come into its trace
  if (info.refuses) {
    alone.emplace();
    flush(call.device, "an operator that may refuse values");
  }
  bool full = false;
  if (info.writes || !fresh.empty()) {
    DeviceLock lock;
    Trace& trace = trace_of(call.device);
    append(trace, call, torch::jit::last(*stack, count), fresh);
    stats().nodes++;
    full = trace.nodes.size() >= bounds().nodes || trace.bytes >= bounds().bytes || info.refuses;
  }
  torch::jit::drop(*stack, count);
  for (auto& value : results) stack->push_back(std::move(value));
  if (!full) return;
  if (info.refuses) {
    flush(call.device, "an operator that may refuse values");
  } else {
    flush(call.device, "the bound on pending work", /*whole_steps=*/true);
  }
}

void record_op(const char* name, const char* overload, torch::jit::Stack& stack) {
  record(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), &stack);
}

Buffer& realize(const at::Tensor& tensor, const char* reason) {
  looks++;
  check_inside(tensor);
  Storage* storage = storage_of(tensor.storage().data_ptr());
  // What nothing pending writes has its value already.
  if (storage->buffer == nullptr || storage->written_in == trace_of(storage->device).serial) flush(storage->device, reason);
  check_readable(*storage);
  if (storage->buffer == nullptr) storage->buffer = new_buffer(storage->device, storage->nbytes);  // never written
  return *storage->buffer;
}

void resize_storage(const c10::Storage& storage, size_t nbytes) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  const size_t kept = std::min(impl->nbytes(), nbytes);
  const auto device = impl->device().index();
  c10::DeviceGuard guard(impl->device());
  c10::DataPtr data = allocator()->allocate(nbytes);
  const bool has_value = [&] {
    DeviceLock lock;
    Storage* old = storage_of(impl->data_ptr());
    storage_of(data)->shrunk = old->shrunk || nbytes < impl->nbytes();
    return kept > 0 && (old->buffer != nullptr || trace_of(device).refers_to(old));
  }();
  if (!has_value) {
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(nbytes);
    return;
  }
  // The old bytes move into a storage of their own, and are copied lazily into the new one.
  c10::DataPtr old = impl->set_data_ptr(std::move(data));
  const size_t old_nbytes = impl->nbytes();
  impl->set_nbytes(nbytes);
  auto bytes_of = [&](c10::Storage s) {
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(std::move(s), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                            c10::scalarTypeToTypeMeta(at::kByte));
    const int64_t size = static_cast<int64_t>(kept), stride = 1;
    t.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(size), at::IntArrayRef(stride));
    return t;
  };
  const at::Tensor from = bytes_of(c10::Storage(
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), old_nbytes, std::move(old), allocator(), true)));
  torch::jit::Stack stack;
  torch::jit::push(stack, bytes_of(storage), from, false);
  record_op("aten::copy_", "", stack);
}

}  // namespace tiny
