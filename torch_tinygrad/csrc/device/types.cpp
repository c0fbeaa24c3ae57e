#include "device/types.h"

#include <array>

#include "python/python_side.h"

namespace tiny {

namespace {

struct Lacking {
  std::string device;
  std::array<bool, static_cast<size_t>(at::ScalarType::NumOptions)> types{};
};

Lacking& lacking() {
  static Lacking found;
  return found;
}

}  // namespace

void set_lacking(std::string device, const std::vector<at::ScalarType>& types) {
  lacking().device = std::move(device);
  for (const auto type : types) lacking().types[static_cast<size_t>(type)] = true;
}

bool lacks(at::ScalarType dtype) {
  ensure_ready();
  return lacking().types[static_cast<size_t>(dtype)];
}

void check_type(at::ScalarType dtype) {
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isQIntType(dtype), "tiny: quantized tensors are not supported: quantize on the CPU");
  if (!lacks(dtype)) return;
  const std::string& device = lacking().device;
  TORCH_CHECK_TYPE(dtype != at::kDouble, "Cannot convert a ", device, " Tensor to float64 dtype as the ", device,
                   " framework doesn't support float64. Please use float32 instead.");
  TORCH_CHECK_TYPE(dtype != at::kBFloat16, "BFloat16 is not supported on ", device);
  TORCH_CHECK_TYPE(false, "Trying to convert ", dtype, " to the ", device, " backend but it does not have support for that dtype.");
}

}  // namespace tiny
