#include "python/python.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "flush/staged.h"
#include "operators/kernels_only.h"
#include "python/python_side.h"

namespace py = pybind11;

namespace tiny {

OpTraits op_traits(const std::string& name) {
  py::gil_scoped_acquire gil;
  const py::dict answer = python_side().op_traits(name);
  return {answer["lifts"].cast<std::vector<size_t>>(),
          answer["writes"].cast<std::vector<size_t>>(),
          answer["random"].cast<bool>(),
          answer["index"].cast<bool>(),
          answer["iterated"].cast<bool>(),
          answer["dynamic"].cast<bool>(),
          answer["refuses"].cast<bool>(),
          answer["pointwise"].cast<bool>()};
}

void infer_on_meta(const OpInfo& info, torch::jit::Stack& stack) {
  c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  try {
    info.op.callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    throw NoMetaKernel();
  } catch (python_error& error) {
    py::gil_scoped_acquire gil;
    if (PyErr_GivenExceptionMatches(error.type, PyExc_NotImplementedError)) throw NoMetaKernel();
    throw;
  }
}

void warn_fallback(const std::string& name) {
  py::gil_scoped_acquire gil;
  python_side().warn_fallback(name);
}

bool shares_host_memory() { return python_side().host; }

std::optional<c10::Device> aten_device(c10::DeviceIndex device) {
  const auto& library = python_side().library;
  if (!library) return std::nullopt;
  return *library == c10::DeviceType::CPU ? c10::Device(*library) : c10::Device(*library, device);
}

void begin_direct(c10::DeviceIndex device) {
  if (shares_host_memory()) return;
  py::gil_scoped_acquire gil;
  release_objects();
  python_side().begin_direct(static_cast<int>(device));
}

void wait_for_device(c10::DeviceIndex device) {
  if (!is_python_side_set() || shares_host_memory()) return;
  py::gil_scoped_acquire gil;
  python_side().synchronize(static_cast<int>(device));
}

void drop_device_memory() {
  if (!is_python_side_set() || shares_host_memory()) return;
  py::gil_scoped_acquire gil;
  release_objects();
  python_side().empty_cache();
}

std::pair<size_t, size_t> device_memory_info(c10::DeviceIndex device) {
  py::gil_scoped_acquire gil;
  return python_side().memory_info(static_cast<int>(device)).cast<std::pair<size_t, size_t>>();
}

std::shared_ptr<Buffer> engine_buffer(c10::DeviceIndex device, size_t nbytes, PyObject* given) {
  auto object = py::reinterpret_steal<py::object>(given);
  c10::Storage owner;
  if (aten_device(device)) owner = object.attr("owner").cast<at::Tensor>().storage();
  return object_buffer(device, nbytes, object.release().ptr(), std::move(owner));
}

PyObject* engine_object(Buffer& buffer) {
  if (buffer.object == nullptr && is_staged(buffer.device)) {
    const auto view = py::memoryview::from_memory(buffer.owner.data(), static_cast<ssize_t>(buffer.nbytes));
    buffer.object = python_side().upload(static_cast<int>(buffer.device), view).release().ptr();
  } else if (buffer.object == nullptr) {
    const KernelsOnly kernels_only;
    buffer.object = python_side().wrap(static_cast<int>(buffer.device), bytes_of(buffer, 0, buffer.nbytes)).release().ptr();
  }
  return buffer.object;
}

std::shared_ptr<Buffer> new_engine_buffer(c10::DeviceIndex device, size_t nbytes) {
  py::gil_scoped_acquire gil;
  return engine_buffer(device, nbytes, python_side().new_buffer(static_cast<int>(device), nbytes).release().ptr());
}

void download_from_engine(const Buffer& buffer, size_t offset, void* destination, size_t nbytes) {
  py::gil_scoped_acquire gil;
  auto view = py::memoryview::from_memory(destination, static_cast<ssize_t>(nbytes));
  python_side().download(py::reinterpret_borrow<py::object>(buffer.object), offset, view);
}

}  // namespace tiny
