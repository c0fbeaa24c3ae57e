// Views and allocation: ATen's own metadata kernels on the device's allocator. Nothing is recorded here.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "device/device.h"
#include "device/storage.h"
#include "device/types.h"
#include "record/recorder.h"

namespace tiny {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device device_or_current(std::optional<c10::Device> device) {
  return {c10::DeviceType::PrivateUse1, device.has_value() && device->has_index() ? device->index() : current_device()};
}

// torch.utils.deterministic.fill_uninitialized_memory
at::Tensor filled_if_asked(at::Tensor fresh) {
  const auto& context = at::globalContext();
  if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()))
    at::native::fill_empty_deterministic_(fresh);
  return fresh;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<c10::Device> device,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
  check_type(c10::dtype_or_default(dtype));
  c10::DeviceGuard guard(device_or_current(device));
  return filled_if_asked(at::detail::empty_generic(size, allocator(), kKeys, c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<c10::Device> device, std::optional<bool>) {
  check_type(c10::dtype_or_default(dtype));
  c10::DeviceGuard guard(device_or_current(device));
  return filled_if_asked(at::detail::empty_strided_generic(size, stride, allocator(), kKeys, c10::dtype_or_default(dtype)));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  const int64_t itemsize = static_cast<int64_t>(self.dtype().itemsize());
  at::detail::check_size_nonnegative(size);
  if (self.sizes() != size) {
    impl->set_sizes_contiguous(size);
    const size_t needed = at::detail::computeStorageNbytesContiguous(size, itemsize, self.storage_offset());
    if (self.numel() > 0 && needed > self.storage().nbytes()) resize_storage(self.storage(), needed);
  }
  if (format.has_value()) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format", *format);
    impl->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_storage_(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  at::OptionalIntArrayRef strides = stride.data() != nullptr ? at::OptionalIntArrayRef(stride) : std::nullopt;
  if (strides.has_value()) {
    impl->set_sizes_and_strides(size, *strides);
  } else {
    impl->set_sizes_contiguous(size);
  }
  const size_t needed = at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.dtype().itemsize(), offset);
  if (self.numel() > 0 && needed > self.storage().nbytes()) resize_storage(self.storage(), needed);
  return self;
}

at::Tensor& set_(at::Tensor& self) {
  c10::DeviceGuard guard(self.device());
  const auto dtype = self.dtype();
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, allocator()->allocate(0), allocator(), true);
  self.set_(storage, 0, {0}, {});
  TORCH_INTERNAL_ASSERT(dtype == self.dtype());
  return self;
}

bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() && self.strides() == other.strides();
}

const at::Tensor& resize_output_(const at::Tensor& self, at::IntArrayRef size, c10::Device device) {
  TORCH_CHECK(self.device() == device, "out Tensor doesn't have the correct device set");
  at::native::resize_output(self, size);
  return self;
}

// A copy of the whole storage, seen as the tensor sees it. Every copy here is lazy.
at::Tensor lazy_clone(const at::Tensor& self) {
  const int64_t count = static_cast<int64_t>(self.storage().nbytes() / self.element_size());
  return at::native::as_strided_tensorimpl(self, {count}, {1}, 0).clone().as_strided(self.sizes(), self.strides(), self.storage_offset());
}

// Whether `self.data = from` may make one of these tensors the other, as it may between the CPU and any device of PyTorch's
// own: module.to() keeps parameters then, and moves their data. TensorImpl's own list of dense devices ends before ours.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  constexpr c10::DispatchKeySet devices({c10::BackendComponent::CPUBit, c10::BackendComponent::PrivateUse1Bit});
  const auto are_both = [&](c10::DispatchKey layout) {
    const auto is_it = [&](const at::Tensor& t) {
      return t.key_set().has_any(c10::DispatchKeySet(layout)) && t.key_set().has_any(devices);
    };
    return is_it(self) && is_it(from);
  };
  return self.key_set() == from.key_set() || are_both(c10::DispatchKey::Dense) || are_both(c10::DispatchKey::Sparse) ||
         are_both(c10::DispatchKey::SparseCsr);
}

at::Tensor view_dtype(const at::Tensor& self, at::ScalarType dtype) {
  check_type(dtype);
  return at::native::view_dtype(self, dtype);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("record_stream", [](at::Tensor&, c10::Stream) {});  // work of all streams is in one order
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("view.dtype", view_dtype);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("_lazy_clone", lazy_clone);
  m.impl("resize_", resize_);
  m.impl("_resize_output_", resize_output_);
  m.impl("set_.source_Storage", at::native::set_);
  m.impl("set_.source_Storage_storage_offset", set_storage_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_", set_);
  m.impl("is_set_to", is_set_to);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}

}  // namespace tiny
