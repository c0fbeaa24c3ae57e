// Setting the Python side of the device.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace tiny {

void set_prepare(pybind11::object function);  // called once, before the first tensor is made
void set_up(const pybind11::dict& hooks, bool host, const std::string& library);

}  // namespace tiny
