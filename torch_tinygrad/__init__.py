"""torch-tinygrad: `torch.device("tiny")`, PyTorch on any hardware that tinygrad drives."""

from __future__ import annotations

__version__ = "0.1.0"

_loaded = False


def _autoload() -> None:
    """Called by `import torch` (entry point `torch.backends`): makes "tiny" a device."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    from . import backend

    backend.load()
