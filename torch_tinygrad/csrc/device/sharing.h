// Memory that others see too: other libraries, by DLPack, and other processes. Such a storage's value stays where it lies.
#pragma once

#include <ATen/core/TensorBody.h>

#include "record/trace.h"

namespace tiny {

// A CPU tensor on the tensor's memory, for others to keep: from now on what is written to either is seen by both, by them
// after a flush. Only where the device computes in the host's memory.
at::Tensor shared_view(const at::Tensor& tensor);

// A tensor of the device on a CPU tensor's memory. Tensors of one CPU storage have one storage on the device.
at::Tensor from_host(const at::Tensor& cpu, c10::DeviceIndex device);

// Moves the tensor's storage into memory that is given, as large as it, and shares it from there.
void move_to(const at::Tensor& tensor, const c10::Storage& memory);

// The CPU tensor on that memory, or on what `from_host` was given; undefined for any other.
at::Tensor owner_view(const at::Tensor& tensor);

// Puts values that a run left elsewhere where they are seen.
void keep_in_place(Storage& storage);
void keep_in_place(const Trace& trace);

}  // namespace tiny
