// Machine code of kernels: bytes that work at any address, and calls of the C library by name.
#pragma once

#include <stdexcept>

namespace tiny {

// Thrown where machine code calls something that no library here has.
struct UnknownSymbol : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace tiny
