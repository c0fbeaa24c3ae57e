"""Calls us back when a module is first imported: parts of PyTorch and libraries that few programs use are told of the
device without importing them in every `import torch`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_waiting: dict[str, Callable[[ModuleType], None]] = {}


def after_import(name: str, call: Callable[[ModuleType], None]) -> None:
    """Calls `call(module)` once the module is imported; at once if it is already."""
    if name in sys.modules:
        call(sys.modules[name])
        return
    if not _waiting:
        sys.meta_path.insert(0, _Finder())
    _waiting[name] = call


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        call, execute = _waiting.pop(name), spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            call(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
