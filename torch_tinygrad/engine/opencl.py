"""OpenCL, where tinygrad's way costs time or ends: pocl compiles every kernel twice, and there is no second device."""

from __future__ import annotations

import ctypes
import functools
from typing import Any


def build_once() -> None:
    """tinygrad asks for a program's binary, and makes the program again from that. For the binary pocl compiles each
    kernel for groups of any size, and again for the groups with which it is launched. It keeps what it made of source
    code by itself, and finds it as quickly. It counts warnings of brackets on the user's terminal."""
    from tinygrad.helpers import to_char_p_p
    from tinygrad.runtime.autogen import opencl as cl
    from tinygrad.runtime.ops_cl import BP_CB, CLProgram, checked

    plain = CLProgram.__init__
    silent = ctypes.create_string_buffer(b"-w")

    def initialize(self: Any, device: Any, program: Any) -> None:
        if not _is_pocl(device):
            return plain(self, device, program)
        self.dev, self.lib, self.signature = device, program.lib, program.signature
        status, source = ctypes.c_int32(), to_char_p_p([program.lib])
        self.program = checked(cl.clCreateProgramWithSource(device.context, 1, source, None, status), status)
        if cl.clBuildProgram(self.program, 1, device.cl_dev, silent, BP_CB(), None):
            device.cl_compiler.compile(program.lib.decode())  # raises, with the compiler's words
        self.kernel = checked(cl.clCreateKernel(self.program, program.name.encode(), status), status)
        return None

    CLProgram.__init__ = initialize


def repeat_devices() -> None:
    """Where there are fewer than `TORCH_TINY_DEVICES`, further ones are the same hardware again, with queues and memory
    of their own, as they are on the CPU and on WebGPU."""
    from tinygrad import Device
    from tinygrad.runtime.ops_cl import CLDevice

    plain = CLDevice.__init__

    def initialize(self: Any, device: str = "") -> None:
        if number := int(device.partition(":")[2] or 0):
            known = Device["CL"].device_ids
            several = [known[i % len(known)] for i in range(max(number + 1, len(known)))]
            CLDevice.device_ids = (type(known)._type_ * len(several))(*several)
        plain(self, device)

    CLDevice.__init__ = initialize


@functools.cache
def _is_pocl(device: Any) -> bool:
    from tinygrad.runtime.autogen import opencl as cl

    said = ctypes.create_string_buffer(256)
    cl.clGetDeviceInfo(device.cl_dev, cl.CL_DEVICE_VERSION, len(said), said, None)
    return b"pocl" in said.value.lower()
