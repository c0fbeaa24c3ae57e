"""A torchvision whose compiled operators are for CUDA cannot load them beside a torch for the CPU, and then fails to be
imported, since it describes two of them. With these two declared it is imported, without its compiled operators."""

from __future__ import annotations

import sys

import torch

try:
    import torchvision  # noqa: F401
except ImportError:
    pass
except RuntimeError:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
