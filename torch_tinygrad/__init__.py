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
    _check_torch()
    _loaded = True
    from . import backend

    backend.load()


def _check_torch() -> None:
    """PyTorch's C++ interface is that of a minor version: with another, the runtime that was built cannot be loaded."""
    from pathlib import Path

    import torch

    note = Path(__file__).with_name("built_for.txt")
    built_for = note.read_text() if note.exists() else ""
    if built_for and torch.__version__.split(".")[:2] != built_for.split("."):
        raise ImportError(
            f"torch-tinygrad was built for torch {built_for}, and this is torch {torch.__version__}: install it again, "
            "with pip's --no-build-isolation to build it for this one"
        )


def _autoload() -> None:
    """Called by `import torch` (entry point `torch.backends`). PyTorch allows one accelerator a process: where its own
    CUDA is usable, "tiny" waits to be asked for, by `DEV`, by `TORCH_TINY_AUTOLOAD=1` or by `load`."""
    import os

    import torch

    asked = os.environ.get("DEV") or os.environ.get("TORCH_TINY_AUTOLOAD") == "1"
    if not asked and torch.cuda.is_available():
        return
    try:
        load()
    except ImportError as error:
        import warnings

        warnings.warn(f"there is no device 'tiny': {error}", stacklevel=2)
