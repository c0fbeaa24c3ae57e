"""Libraries that know devices by name: where they find none of theirs and would take the CPU, they are told of ours.

Nothing here imports them: each function runs when its module is first imported by the program.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

import torch

from . import lightning, tiny
from .choice import is_host
from .on_import import after_import


def _or_ours(device: torch.device) -> torch.device:
    """Our device in the place of the CPU, if it is PyTorch's accelerator."""
    accelerator = torch.accelerator.current_accelerator()
    if device.type != "cpu" or accelerator is None or accelerator.type != "tiny":
        return device
    return torch.device("tiny", tiny.current_device())


def _accelerate_state(module: Any) -> None:
    """`accelerate`: the device of one process, and of each of several that talk by gloo."""
    state = module.PartialState
    default_device, set_device, prepare = state.default_device.fget, state.set_device, state._prepare_backend

    @functools.wraps(prepare)
    def prepare_backend(self: Any, cpu: bool = False, *args: Any, **kwargs: Any) -> Any:
        backend, kind = prepare(self, cpu, *args, **kwargs)
        is_one_of_several = "LOCAL_RANK" in os.environ and _or_ours(torch.device("cpu")).type == "tiny"
        if kind == module.DistributedType.NO and not cpu and is_one_of_several:
            return "gloo", module.DistributedType.MULTI_CPU
        return backend, kind

    @functools.wraps(set_device)
    def set_device_of_process(self: Any) -> None:
        asked = self.device is not None  # by ACCELERATE_TORCH_DEVICE
        set_device(self)
        if not asked and not self._cpu and self.distributed_type == module.DistributedType.MULTI_CPU:
            self.device = _or_ours(self.device)

    state.default_device = property(lambda self: _or_ours(default_device(self)))
    state.set_device = set_device_of_process
    state._prepare_backend = prepare_backend


def _accelerate_memory(module: Any) -> None:
    """`device_map="auto"`: how much fits on the device. The host's memory, where it is that, does not count twice."""
    get_max_memory = module.get_max_memory

    @functools.wraps(get_max_memory)
    def memory(max_memory: Any = None) -> Any:
        found = get_max_memory(max_memory)
        if max_memory is not None or set(found) != {"cpu"} or _or_ours(torch.device("cpu")).type != "tiny":
            return found
        ours = {index: tiny.mem_get_info(index)[0] for index in range(tiny.device_count())}
        return ours if is_host() else {**ours, **found}

    module.get_max_memory = memory


def _transformers_arguments(module: Any) -> None:
    """`transformers.Trainer`: the device of its arguments."""
    arguments = module.TrainingArguments
    setup = arguments._setup_devices.func

    @functools.wraps(setup)
    def devices(self: Any) -> torch.device:
        device = setup(self)
        return device if self.use_cpu else _or_ours(device)

    arguments._setup_devices = functools.cached_property(devices)
    arguments._setup_devices.__set_name__(arguments, "_setup_devices")


def _transformers_types(module: Any) -> None:
    """`transformers`: bfloat16 on an accelerator."""
    available = module.is_torch_bf16_gpu_available

    @functools.wraps(available)
    def is_torch_bf16_gpu_available() -> bool:
        return available() or (_or_ours(torch.device("cpu")).type == "tiny" and tiny.is_bf16_supported())

    module.is_torch_bf16_gpu_available = is_torch_bf16_gpu_available


class _Slice:
    """A part of a file, of which parts are read onto a device."""

    def __init__(self, part: Any, device: Any):
        self._part, self._device = part, device

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._part[index].to(self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


class _File:
    """A file that was opened on the CPU, read onto a device."""

    def __init__(self, file: Any, device: Any):
        self._file, self._device = file, device

    def __enter__(self) -> _File:
        self._file.__enter__()
        return self

    def __exit__(self, *exception: Any) -> Any:
        return self._file.__exit__(*exception)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._file.get_tensor(name).to(self._device)

    def get_tensors(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        return {name: value.to(self._device) for name, value in self._file.get_tensors(*args, **kwargs).items()}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._file.get_slice(name), self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _safetensors(module: Any) -> None:
    """`safetensors`: a file opened on our device."""
    safe_open = module.safe_open

    @functools.wraps(safe_open, updated=())
    def open_on_device(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        if not (isinstance(device, str | torch.device) and torch.device(device).type == "tiny"):
            return safe_open(filename, framework, device, **options)
        return _File(safe_open(filename, framework, "cpu", **options), device)

    module.safe_open = open_on_device


def _flex_attention(module: Any) -> None:
    """PyTorch's own `flex_attention`, which has a list of devices; on ours it is plain mathematics, with a gradient."""
    validate = module._validate_device

    @functools.wraps(validate)
    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "tiny":
            validate(query, key, value)

    module._validate_device = validate_device


TOLD: dict[str, Any] = {
    "accelerate.state": _accelerate_state,
    "accelerate.utils.modeling": _accelerate_memory,
    "safetensors": _safetensors,
    "torch.nn.attention.flex_attention": _flex_attention,
    "transformers.training_args": _transformers_arguments,
    "transformers.utils.import_utils": _transformers_types,
    **lightning.TOLD,
}


def register() -> None:
    for name, tell in TOLD.items():
        after_import(name, _if_it_is_as_known(tell))


def _if_it_is_as_known(tell: Any) -> Any:
    """A version of the library that is built otherwise goes on as it would without us."""

    def told(module: ModuleType) -> None:
        try:
            tell(module)
        except AttributeError as error:
            import warnings

            version = getattr(__import__(module.__name__.partition(".")[0]), "__version__", "unknown")
            warnings.warn(
                f"tiny: {module.__name__} ({version}) cannot be told of the device ({error}): name it yourself",
                stacklevel=2,
            )

    return told
