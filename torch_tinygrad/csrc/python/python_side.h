// The Python side of the device: what C++ calls there, set at its first use.
#pragma once

#include <c10/core/Device.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <string>

namespace tiny {

struct PythonSide {
  pybind11::object op_traits, warn_fallback, compile, compile_sizes, request, load, new_buffer, wrap, begin_direct, upload, download,
      synchronize, empty_cache, memory_info, Region, Number, Storage, Trace, MAY_PASS;
  bool host;
  std::optional<c10::DeviceType> library;
};
// Sets it up at the device's first use.
void ensure_ready();
const PythonSide& python_side();
bool is_python_side_set();

void set_prepare(pybind11::object function);  // called once, before the first tensor is made
void set_up(const pybind11::dict& hooks, bool host, const std::string& library);

}  // namespace tiny
