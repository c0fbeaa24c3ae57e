"""What PyTorch refuses for every device out of its own tree, or for all but one: its message, the line that refuses."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.differential import DEVICE, ON_TINY

pytestmark = pytest.mark.skipif(not ON_TINY, reason="about the device alone")
TORCH = Path(torch.__file__).parents[1]


def tensor() -> torch.Tensor:
    return torch.ones(4, 4, device=DEVICE)


def semi_structured() -> object:
    return torch.sparse.to_sparse_semi_structured(torch.tensor([0, 0, 1, 1]).tile((128, 32)).half().to(DEVICE))


# What is asked, the error, and the file of PyTorch's that refuses; where that is C++ no traceback has the line.
REFUSED = {
    "Tensor.numpy": (lambda: tensor().numpy(), "can't convert tiny:0 device type tensor to numpy", ""),
    "numpy.asarray": (lambda: np.asarray(tensor()), "can't convert tiny:0 device type tensor", "torch/_tensor.py"),
    "pinning a tensor of the device": (lambda: tensor().pin_memory(), "only dense CPU tensors can be pinned", ""),
    "semi-structured sparsity": (semi_structured, "Only CUDA tensors", "torch/sparse/semi_structured.py"),
    "nn.DataParallel": (
        lambda: nn.DataParallel(nn.Linear(4, 2).to(DEVICE))(tensor()),
        "no attribute '_scatter'",
        "torch/nn/parallel/comm.py",
    ),
    "symmetric memory": (
        lambda: torch.distributed._symmetric_memory.empty(4, device=DEVICE),
        "SymmetricMemory does not support device type tiny",
        "torch/distributed/_symmetric_memory/__init__.py",
    ),
    "handles of events for other processes": (
        lambda: torch.tiny.Event(interprocess=True).ipc_handle(), "torch.Event ipc is not supported yet", "",
    ),
    "Tensor.cuda": (lambda: tensor().cuda(), "Torch not compiled with CUDA enabled", "torch/cuda/__init__.py"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_pytorch(name, record_property):
    if name == "symmetric memory":
        pytest.importorskip("torch.distributed._symmetric_memory")
    if name in ("nn.DataParallel", "Tensor.cuda") and torch.backends.cuda.is_built():
        pytest.skip("this PyTorch is built for CUDA")
    call, message, file = REFUSED[name]
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        call()
    frames = [f for f in traceback.extract_tb(caught.value.__traceback__) if Path(f.filename).is_relative_to(TORCH)]
    frames = [f for f in frames if f.filename.startswith(str(TORCH / "torch"))]
    where = "in C++"
    if file:
        assert frames and frames[-1].filename == str(TORCH / file)
        where = f"{file}:{frames[-1].lineno}"
    record_property("said", f"{type(caught.value).__name__}: {str(caught.value).splitlines()[0][:120]} ({where})")
