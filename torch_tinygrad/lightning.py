"""Lightning and Fabric: the accelerator "tiny", which `accelerator="auto"` chooses where it would take the CPU.

Nothing here imports them: see libraries.py, which calls these functions when they are first imported."""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any

import torch

from . import tiny
from .streams import index_of


def accelerator(base: Any) -> Any:
    """The class of the accelerator, for the given one of Lightning's base classes."""

    class TinyAccelerator(base):
        def setup_device(self, device: torch.device) -> None:
            if device.type != "tiny":
                raise ValueError(f"Device should be tiny, got {device} instead.")
            tiny.set_device(device)

        def teardown(self) -> None:
            tiny.empty_cache()

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            if isinstance(devices, str) and devices not in ("auto", "-1"):
                devices = [int(part) for part in devices.split(",")] if "," in devices else int(devices)
            if devices in ("auto", "-1", -1):
                devices = tiny.device_count()
            chosen = list(range(devices)) if isinstance(devices, int) else [index_of(d) for d in devices]
            if not chosen or max(chosen) >= tiny.device_count():
                raise ValueError(
                    f"there are {tiny.device_count()} tiny devices (TORCH_TINY_DEVICES), asked for {devices}"
                )
            return chosen

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device("tiny", index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            return tiny.device_count()

        @staticmethod
        def is_available() -> bool:
            return tiny.is_available()

        @staticmethod
        def name() -> str:
            return "tiny"

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return tiny.memory_stats(device)

    return TinyAccelerator


def tell(connector: Any, package: str, kind: str) -> None:
    """Registers the accelerator with Fabric or the Trainer, whose connector chooses the device."""
    base = importlib.import_module(f"{package}.accelerators.accelerator").Accelerator
    registry = importlib.import_module(f"{package}.accelerators")
    registry = getattr(registry, "ACCELERATOR_REGISTRY", None) or registry.AcceleratorRegistry
    registered = accelerator(base)
    registry.register("tiny", registered, description="tinygrad's devices", override=True)
    chooser = getattr(connector, kind)
    choose, choose_strategy = chooser._choose_auto_accelerator, chooser._choose_strategy

    @functools.wraps(choose)
    def choose_accelerator(*args: Any) -> str:
        chosen = choose(*args)
        current = torch.accelerator.current_accelerator()
        return "tiny" if chosen == "cpu" and current is not None and current.type == "tiny" else chosen

    @functools.wraps(choose_strategy)
    def choose_strategy_for(self: Any) -> Any:
        strategy = choose_strategy(self)
        devices = self._parallel_devices
        if isinstance(strategy, connector.SingleDeviceStrategy) and devices and devices[0].type == "tiny":
            return connector.SingleDeviceStrategy(device=devices[0])
        return strategy

    init_precision = chooser._check_and_init_precision

    @functools.wraps(init_precision)
    def init_precision_for(self: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*CUDA is not available")  # its first guess at the device
            plugin = init_precision(self)
        if isinstance(plugin, connector.MixedPrecision) and isinstance(self.accelerator, registered):
            plugin.device = "tiny"
            if plugin.scaler is not None:
                plugin.scaler = torch.amp.GradScaler("tiny")
        return plugin

    chooser._check_and_init_precision = init_precision_for
    chooser._choose_auto_accelerator = staticmethod(choose_accelerator)
    chooser._choose_strategy = choose_strategy_for


TOLD: dict[str, Any] = {
    "lightning.fabric.connector": lambda m: tell(m, "lightning.fabric", "_Connector"),
    "lightning_fabric.connector": lambda m: tell(m, "lightning_fabric", "_Connector"),
    "lightning.pytorch.trainer.connectors.accelerator_connector": lambda m: tell(
        m, "lightning.pytorch", "_AcceleratorConnector"
    ),
    "pytorch_lightning.trainer.connectors.accelerator_connector": lambda m: tell(
        m, "pytorch_lightning", "_AcceleratorConnector"
    ),
}
