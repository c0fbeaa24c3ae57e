// Pinned memory: host memory that a device can copy from by itself. Ordinary memory is as good here, but it must say that
// it is pinned, as libraries ask before they hand it on.
#pragma once

#include <c10/core/Allocator.h>

namespace tiny {

c10::Allocator* pinned_allocator();
bool is_pinned(const void* address);

}  // namespace tiny
