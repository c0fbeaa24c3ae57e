"""torch-tinygrad: `torch.device("tiny")`, PyTorch on any hardware that tinygrad drives."""

from __future__ import annotations

__version__ = "0.1.0"

_loaded = False


def __getattr__(name: str):
    if name in ("to_tinygrad", "from_tinygrad"):
        load()
        from . import interchange

        return getattr(interchange, name)
    raise AttributeError(f"module 'torch_tinygrad' has no attribute {name!r}")


def load() -> None:
    """Makes "tiny" a device of PyTorch. `import torch` does so by itself, except beside a usable CUDA."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    from . import backend

    backend.load()


def _autoload() -> None:
    """Called by `import torch` (entry point `torch.backends`). PyTorch allows one accelerator a process: where its own
    CUDA is usable, "tiny" waits to be asked for, by `DEV`, by `TORCH_TINY_AUTOLOAD=1` or by `load`."""
    import os

    import torch

    asked = os.environ.get("DEV") or os.environ.get("TORCH_TINY_AUTOLOAD") == "1"
    if asked or not torch.cuda.is_available():
        load()
