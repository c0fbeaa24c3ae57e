"""torch.compile: the dynamo backend "tiny", which is also what the default backend does with graphs on the device.

A graph runs operator by operator and is recorded, as eager code is, until two calls have recorded the same: from then
on what they recorded is appended to the trace as a whole (csrc/graphs/recorded_graph.cpp says when that is not so).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from . import _C, whole_steps
from .on_import import after_import


def tiny(graph: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Callable:
    """The dynamo backend: `torch.compile(model, backend="tiny")`."""
    run = graph.forward
    held = [functools.reduce(getattr, n.target.split("."), graph) for n in graph.graph.nodes if n.op == "get_attr"]
    if not all(map(_only_records, graph.graph.nodes)) or not all(isinstance(tensor, torch.Tensor) for tensor in held):
        return run
    if torch._dynamo.config.compiled_autograd:  # which sees through nodes of PyTorch's own alone
        return run
    parameters = tuple(held)
    recorded = _C.RecordedGraph(lambda *given: run(*given[: len(given) - len(parameters)]))

    def call(*arguments: Any) -> Any:
        given = arguments + parameters
        results = recorded.append(given)
        if results is not None:
            return results
        begin = recorded.begin(given)
        results = run(*arguments)
        return results if begin is None else recorded.end(begin, given, results)

    return call


def _only_records(node: torch.fx.Node) -> bool:
    """Whether all that a node does is to record operators: operators that are not PyTorch's own may do more."""
    if node.op != "call_function":
        return node.op != "call_module"
    target = node.target
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target).partition(".")[0] in ("aten", "prims")
    if isinstance(target, torch._ops.HigherOrderOperator):
        return False
    return str(getattr(target, "__module__", "")).partition(".")[0] in ("torch", "_operator", "math", "None", "")


def _tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def is_on_tiny(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a tensor of the device goes into the graph or comes from one of its operators."""
    values = [*inputs, *(node.meta.get("example_value", node.meta.get("val")) for node in graph.graph.nodes)]
    return any(tensor.device.type == "tiny" for tensor in _tensors(values))


def _inductor(module: ModuleType) -> None:
    """Inductor writes code for the devices it knows: graphs on ours go our way."""
    compile_fx = module.compile_fx  # type: ignore[attr-defined]

    @functools.wraps(compile_fx)
    def compile_on_device(graph: Any, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Callable:
        if isinstance(graph, torch.fx.GraphModule) and is_on_tiny(graph, inputs):
            if module.V.aot_compilation:  # type: ignore[attr-defined]
                raise NotImplementedError("tiny: AOTInductor writes code for the devices it knows, none of tiny's")
            return tiny(graph, inputs)
        return compile_fx(graph, inputs, *args, **kwargs)

    module.compile_fx = compile_on_device  # type: ignore[attr-defined]


def _interface(module: ModuleType) -> None:
    """What dynamo asks about a device: its streams, events and properties."""
    from . import tiny as device_module

    class Worker:
        set_device = staticmethod(device_module.set_device)
        current_device = staticmethod(device_module.current_device)
        get_device_properties = staticmethod(device_module.get_device_properties)

    class TinyInterface(module.DeviceInterface):  # type: ignore[name-defined, misc]
        device = device_module.device
        Event = device_module.Event
        Stream = device_module.Stream
        current_device = staticmethod(device_module.current_device)
        set_device = staticmethod(device_module.set_device)
        device_count = staticmethod(device_module.device_count)
        is_available = staticmethod(device_module.is_available)
        stream = staticmethod(device_module.stream)
        current_stream = staticmethod(device_module.current_stream)
        set_stream = staticmethod(device_module.set_stream)
        _set_stream_by_id = staticmethod(device_module._set_stream_by_id)
        synchronize = staticmethod(device_module.synchronize)
        get_device_properties = staticmethod(device_module.get_device_properties)
        get_compute_capability = staticmethod(lambda device=None: "")
        is_bf16_supported = staticmethod(device_module.is_bf16_supported)
        memory_allocated = staticmethod(device_module.memory_allocated)
        exchange_device = staticmethod(device_module._exchange_device)
        maybe_exchange_device = staticmethod(device_module._maybe_exchange_device)
        get_raw_stream = staticmethod(lambda index: device_module.current_stream(index).stream_id)

        @classmethod
        def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
            return dtype in device_module.get_device_capability()["supported_dtypes"]

        @staticmethod
        def is_triton_capable(device: Any = None) -> bool:
            return False

    TinyInterface.Worker = Worker  # type: ignore[assignment]
    for name in ["tiny", *(f"tiny:{i}" for i in range(device_module.device_count()))]:
        module.register_interface_for_device(name, TinyInterface)  # type: ignore[attr-defined]


def _skipped(module: ModuleType) -> None:
    """What the device runs while a program is traced, its compiler too, is no part of that program."""
    for package in ("torch_tinygrad", "tinygrad"):
        module.add(package)  # type: ignore[attr-defined]


def register() -> None:
    after_import("torch._dynamo.backends.registry", lambda module: module.register_backend(tiny))
    after_import("torch._dynamo.trace_rules", _skipped)
    after_import("torch._dynamo.device_interface", _interface)
    after_import("torch._inductor.compile_fx", _inductor)
    whole_steps.register()
