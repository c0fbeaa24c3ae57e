// Sparse, nested and quantized tensors. What they are made of (indices, values, a buffer, bytes) are tensors of the device;
// operators on them are ATen's for the CPU, on the host's memory, and counted as such. Nothing of them is recorded.
#include "operators/layouts.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nested_tensor_size_native.h>
#include <ATen/ops/_nested_tensor_storage_offsets_native.h>
#include <ATen/ops/_nested_tensor_strides_native.h>
#include <ATen/ops/_nested_view_from_buffer.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_coalesced_native.h>
#include <torch/library.h>

#include <utility>

#include "device/device.h"
#include "device/host_views.h"
#include "python/python.h"
#include "record/call.h"
#include "record/recorder.h"
#include "record/replaced.h"

namespace tiny {
namespace {

bool is_compressed(const at::Tensor& t) {
  return t.layout() == at::kSparseCsr || t.layout() == at::kSparseCsc || t.layout() == at::kSparseBsr || t.layout() == at::kSparseBsc;
}

// All bytes of a tensor's storage, as a tensor on it.
at::Tensor storage_bytes(const at::Tensor& t) {
  at::Tensor bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(t.storage()), c10::DispatchKeySet(c10::computeDispatchKey(at::kByte, at::kStrided, t.device())),
      caffe2::TypeMeta::Make<uint8_t>());
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(t.storage().nbytes())});
  return bytes;
}

// A quantized tensor like another, on other bytes.
at::Tensor quantized_on(const at::Tensor& like, const at::Tensor& bytes) {
  c10::Storage storage = bytes.storage();
  if (bytes.device().is_cpu())  // a view of the host's may begin anywhere in its storage
    storage = at::from_blob(bytes.data_ptr(), bytes.sizes(), [bytes](void*) {}, bytes.options()).storage();
  at::Tensor made = at::detail::make_tensor<at::QTensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::computeDispatchKey(like.scalar_type(), at::kStrided, bytes.device())), like.dtype(),
      at::get_qtensorimpl(like)->quantizer());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

// The tensor with each of the dense tensors that it is made of replaced, on their device.
template <class F>
at::Tensor rebuilt(const at::Tensor& t, const F& f) {
  if (t.is_nested())
    return at::_nested_view_from_buffer(f(at::native::get_nested_tensor_impl(t)->get_unsafe_storage_as_tensor()),
                                        at::native::_nested_tensor_size(t), at::native::_nested_tensor_strides(t),
                                        at::native::_nested_tensor_storage_offsets(t));
  if (t.is_quantized()) return quantized_on(t, f(storage_bytes(t)));
  if (t.layout() == at::kSparse) {
    const auto* impl = at::sparse::get_sparse_impl(t);
    const at::Tensor indices = f(impl->indices()), values = f(impl->values());
    return at::_sparse_coo_tensor_unsafe(indices, values, t.sizes(), values.options().layout(at::kSparse), impl->coalesced());
  }
  if (is_compressed(t)) {
    const auto* impl = at::sparse_csr::get_sparse_csr_impl(t);
    const at::Tensor values = f(impl->values());
    return at::_sparse_compressed_tensor_unsafe(f(impl->compressed_indices()), f(impl->plain_indices()), values, t.sizes(),
                                                values.options().layout(t.layout()));
  }
  return f(t);
}

// Makes a tensor what another of its kind is.
void assign(const at::Tensor& to, const at::Tensor& from) {
  if (to.layout() == at::kSparse) {
    auto *ours = at::sparse::get_sparse_impl(to), *theirs = at::sparse::get_sparse_impl(from);
    ours->raw_resize_(theirs->sparse_dim(), theirs->dense_dim(), theirs->sizes());
    ours->set_indices_and_values_unsafe(theirs->indices(), theirs->values());
    ours->set_coalesced(theirs->coalesced());
  } else if (is_compressed(to)) {
    const auto* theirs = at::sparse_csr::get_sparse_csr_impl(from);
    at::sparse_csr::get_sparse_csr_impl(to)->set_member_tensors(theirs->compressed_indices(), theirs->plain_indices(), theirs->values(),
                                                                theirs->sizes());
  } else if (to.is_quantized()) {
    storage_bytes(to).copy_(storage_bytes(from));
  } else if (!to.is_nested()) {
    if (to.sizes() != from.sizes()) {
      to.resize_(from.storage().nbytes() / from.itemsize());  // it may be a part of a larger matrix
      to.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
    }
    to.copy_(from);
  }
}

}  // namespace

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_fork();
  count_fallback(op.schema().name());
  const auto& arguments = op.schema().arguments();
  const size_t base = stack->size() - arguments.size();
  Replacements replacements;
  c10::DeviceIndex device = current_device();
  bool to_ours = true;  // where the results belong
  for (size_t i = 0; i < arguments.size(); i++) {
    c10::IValue& value = (*stack)[base + i];
    if (value.isDevice()) to_ours = value.toDevice().type() == c10::DeviceType::PrivateUse1;
    if (value.isDevice() && value.toDevice().type() == c10::DeviceType::PrivateUse1) {
      if (value.toDevice().has_index()) device = value.toDevice().index();
      value = c10::Device(c10::kCPU);
      continue;
    }
    const bool written = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    const bool may_resize = arguments[i].is_out();
    replacements.enter(value, [&](const at::Tensor& t) -> Replacements::Made {
      if (!is_tiny(t)) return {t, false};
      device = t.device().index();
      const bool shares = t.layout() == at::kStrided && !t.is_nested() && shares_host_memory() && !may_resize;
      auto on_host = [&](const at::Tensor& part) { return may_resize ? part.cpu() : host_view(part, op.schema().name().c_str()); };
      at::Tensor cpu = rebuilt(t, on_host);
      // Kernels look whether a gradient will be wanted, to keep what it takes.
      if (t.requires_grad() && !written) cpu.set_requires_grad(true);
      return {std::move(cpu), written && !shares};
    });
  }
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.callBoxed(stack);
  }
  const c10::Device ours(c10::DeviceType::PrivateUse1, device);
  auto up = [&](const at::Tensor& part) {
    if (part.is_non_overlapping_and_dense() || at::has_internal_overlap(part) == at::MemOverlap::Yes)
      return part.to(ours, /*non_blocking=*/false, /*copy=*/true);
    // A part of LAPACK's larger matrix, which may end after it.
    const auto held = static_cast<int64_t>(part.storage().nbytes() / part.itemsize()) - part.storage_offset();
    at::Tensor larger = at::empty({held}, part.options().device(ours));
    larger.unsafeGetTensorImpl()->set_sizes_and_strides(part.sizes(), part.strides());
    return larger.copy_(part);
  };
  replacements.copy_back([&](const at::Tensor& to, const at::Tensor& from) { assign(to, rebuilt(from, up)); });
  for (size_t i = base; i < stack->size(); i++)
    replacements.leave((*stack)[i], [&](const at::Tensor& t) { return to_ours ? rebuilt(t, up) : t; });
}

namespace {

constexpr auto kBoxed = &torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>;

// Composite kernels, which are written for dense tensors, come before a fallback. So it is registered by name as well, for
// all operators that the CPU has a kernel of its own for.
void register_all(torch::Library& m, c10::DispatchKey cpu, c10::DispatchKey ours) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(cpu)) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (op && !op->hasKernelForDispatchKey(ours)) m.impl(toString(name).c_str(), kBoxed());
  }
}

// A dense gradient is recorded, a sparse one is the CPU's.
void embedding_bag_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto sparse = static_cast<size_t>(*op.schema().argumentIndexWithName("sparse"));
  (*stack)[stack->size() - op.schema().arguments().size() + sparse].toBool() ? run_on_cpu(op, stack) : record(op, stack);
}

// Dense tensors that become others, and operators of which no result can be inferred without the values.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : {"_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc",
                           "_nested_tensor_from_mask", "_nested_tensor_from_mask_left_aligned", "_nested_from_padded", "_spdiags",
                           "_padded_dense_to_jagged_forward", "quantize_per_tensor", "quantize_per_tensor_dynamic",
                           "quantize_per_tensor.tensor_qparams", "quantize_per_tensor.tensors", "quantize_per_channel",
                           "_make_per_tensor_quantized_tensor", "_make_per_channel_quantized_tensor", "choose_qparams_optimized"})
    m.impl(name, kBoxed());
  m.impl("_nested_view_from_buffer", TORCH_FN(at::native::_nested_view_from_buffer));
  m.impl("_embedding_bag_backward", torch::CppFunction::makeFromBoxedFunction<&embedding_bag_backward>());
  m.impl("to_mkldnn", [](const at::Tensor&, std::optional<at::ScalarType>) -> at::Tensor {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "tiny: tensors in oneDNN's own layout are the CPU's");
  });
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(kBoxed()); }
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) { m.fallback(kBoxed()); }
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) { m.fallback(kBoxed()); }
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) { m.fallback(kBoxed()); }

// What only looks at what a tensor is made of.
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_symint));
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  m.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
  m.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("_dimI", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("_dimV", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
  m.impl("indices", TORCH_FN(at::native::indices_sparse));
  m.impl("values", TORCH_FN(at::native::values_sparse));
  register_all(m, c10::DispatchKey::SparseCPU, c10::DispatchKey::SparsePrivateUse1);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_compressed_symint));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  m.impl("values", TORCH_FN(at::native::values_sparse_csr));
  m.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  m.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  m.impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  m.impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
  register_all(m, c10::DispatchKey::SparseCsrCPU, c10::DispatchKey::SparseCsrPrivateUse1);
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  m.impl("as_strided", TORCH_FN(at::native::as_strided_qtensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("copy_", kBoxed());
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_quantized_));
  register_all(m, c10::DispatchKey::QuantizedCPU, c10::DispatchKey::QuantizedPrivateUse1);
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_nested_tensor_size", TORCH_FN(at::native::_nested_tensor_size));
  m.impl("_nested_tensor_strides", TORCH_FN(at::native::_nested_tensor_strides));
  m.impl("_nested_tensor_storage_offsets", TORCH_FN(at::native::_nested_tensor_storage_offsets));
  register_all(m, c10::DispatchKey::NestedTensorCPU, c10::DispatchKey::NestedTensorPrivateUse1);
}

}  // namespace
}  // namespace tiny
