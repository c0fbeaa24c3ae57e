"""WebGPU by Dawn, where tinygrad's way costs time: it makes a pipeline anew for every launch, and a buffer that it
never frees. Here pipelines stay, and neighbouring kernels of a program go to the device in one pass."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tinygrad import Device
from tinygrad.runtime import ops_webgpu
from tinygrad.runtime.autogen import webgpu

if TYPE_CHECKING:
    from .operands import Kernel, Operands


@functools.cache
def _infinity(device: str) -> Any:
    """What each kernel binds first: WGSL has no number for it."""
    return Device[device].create_uniform(float("inf"))


def _layout_of(kind: int, number: int) -> Any:
    buffer = webgpu.WGPUBufferBindingLayout(type=kind)
    return webgpu.WGPUBindGroupLayoutEntry(binding=number, visibility=webgpu.WGPUShaderStage_Compute, buffer=buffer)


class Pipeline:
    """A kernel as the device takes it: made once, with the numbers that it binds."""

    def __init__(self, device: str, runtime: ops_webgpu.WebGPUProgram, buffers: int, sizes: dict[str, Any]):
        self.device, self.runtime = device, runtime
        opened = self.opened = Device[device]
        self.uniforms = [opened.create_uniform(number) for number in sizes["vals"]]
        self.groups = sizes["global_size"]
        kinds = [webgpu.WGPUBufferBindingType_Storage] * buffers
        kinds += [webgpu.WGPUBufferBindingType_Uniform] * len(self.uniforms)
        entries = [_layout_of(kind, n) for n, kind in enumerate([webgpu.WGPUBufferBindingType_Uniform, *kinds])]
        array = (webgpu.WGPUBindGroupLayoutEntry * len(entries))(*entries)
        webgpu.wgpuDevicePushErrorScope(opened.device_res, webgpu.WGPUErrorFilter_Validation)
        self.layout = webgpu.wgpuDeviceCreateBindGroupLayout(
            opened.device_res, webgpu.WGPUBindGroupLayoutDescriptor(entryCount=len(entries), entries=array)
        )
        layouts = (webgpu.WGPUBindGroupLayout * 1)(self.layout)
        of_pipeline = webgpu.wgpuDeviceCreatePipelineLayout(
            opened.device_res, webgpu.WGPUPipelineLayoutDescriptor(bindGroupLayoutCount=1, bindGroupLayouts=layouts)
        )
        if error := opened.pop_error():
            raise RuntimeError(f"tiny: {device} refuses the operands of a kernel: {error}")
        stage = webgpu.WGPUComputeState(module=runtime.prg, entryPoint=runtime.name)
        self.pipeline = ops_webgpu.DeviceCreateComputePipeline(
            opened.device_res, webgpu.WGPUComputePipelineDescriptor(layout=of_pipeline, compute=stage)
        )
        webgpu.wgpuPipelineLayoutRelease(of_pipeline)

    def encode(self, into: Any, buffers: list[Any]) -> Any:
        """Adds the launch to a pass; returns the bindings, which are released when the pass is with the device."""
        bound = [_infinity(self.device), *buffers, *self.uniforms]
        entries = (webgpu.WGPUBindGroupEntry * len(bound))(
            *(
                webgpu.WGPUBindGroupEntry(binding=n, buffer=buffer, offset=0, size=webgpu.wgpuBufferGetSize(buffer))
                for n, buffer in enumerate(bound)
            )
        )
        bindings = webgpu.wgpuDeviceCreateBindGroup(
            self.opened.device_res,
            webgpu.WGPUBindGroupDescriptor(layout=self.layout, entryCount=len(bound), entries=entries),
        )
        webgpu.wgpuComputePassEncoderSetPipeline(into, self.pipeline)
        webgpu.wgpuComputePassEncoderSetBindGroup(into, 0, bindings, 0, None)
        webgpu.wgpuComputePassEncoderDispatchWorkgroups(into, *self.groups)
        return bindings

    def __del__(self) -> None:
        try:
            for uniform in self.uniforms:
                self.opened.free(uniform)
            webgpu.wgpuBindGroupLayoutRelease(self.layout)
            webgpu.wgpuComputePipelineRelease(self.pipeline)
        except (AttributeError, TypeError):  # half made, or the interpreter ends
            pass


class Pass:
    """Kernels that the device gets together. It runs them in order, each after what it reads is written."""

    def __init__(self, device: str, kernels: list[Kernel]):
        self.device, self.kernels = device, kernels
        self.operands = [i for kernel in kernels for i in kernel.operands]
        self.writes = [i for kernel in kernels for i in kernel.writes]

    def run(self, operands: Operands) -> None:
        opened, opaque = Device[self.device], operands.opaque
        webgpu.wgpuDevicePushErrorScope(opened.device_res, webgpu.WGPUErrorFilter_Validation)
        encoder = webgpu.wgpuDeviceCreateCommandEncoder(opened.device_res, webgpu.WGPUCommandEncoderDescriptor())
        into = webgpu.wgpuCommandEncoderBeginComputePass(encoder, webgpu.WGPUComputePassDescriptor())
        bindings = [k.pipeline.encode(into, [opaque[i] for i in k.operands]) for k in self.kernels]
        webgpu.wgpuComputePassEncoderEnd(into)
        commands = webgpu.wgpuCommandEncoderFinish(encoder, webgpu.WGPUCommandBufferDescriptor())
        webgpu.wgpuQueueSubmit(opened.queue, 1, (webgpu.WGPUCommandBuffer * 1)(commands))
        for group in bindings:
            webgpu.wgpuBindGroupRelease(group)
        webgpu.wgpuComputePassEncoderRelease(into)
        webgpu.wgpuCommandEncoderRelease(encoder)
        webgpu.wgpuCommandBufferRelease(commands)
        if error := opened.pop_error():
            names = ", ".join(kernel.info.function_name for kernel in self.kernels)
            raise RuntimeError(f"tiny: {self.device} refuses the launch of {names}: {error}")
