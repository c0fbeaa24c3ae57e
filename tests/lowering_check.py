"""Checks lowerings alone, without the device: runs an OpInfo's samples on the CPU and, for every aten operator that
PyTorch dispatches on the way (forward and backward), computes the same operator through its lowering and compares.

    python tests/lowering_check.py add softmax nn.functional.conv2d --samples 6 [--dtype float32]
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from tinygrad import Device, Tensor  # noqa: E402

from torch_tinygrad import lower  # noqa: E402
from torch_tinygrad.lower.registry import LOWERINGS, TO_TINY, Meta, name_of  # noqa: E402


def to_tiny(t: torch.Tensor):
    if t.dim() == 0 and t.numel() == 1 and getattr(t, "_is_number", False):
        return t.item()
    if t.numel() == 0:
        return Tensor.zeros(*t.shape, dtype=TO_TINY[t.dtype]).contiguous()
    raw = t.detach().contiguous().view(torch.uint8) if t.dim() else t.detach().reshape(1).view(torch.uint8)
    return Tensor(bytes(raw.numpy().tobytes())).bitcast(TO_TINY[t.dtype]).reshape(tuple(t.shape)).contiguous().realize()


def to_torch(t: Tensor, dtype: torch.dtype) -> torch.Tensor:
    shape = tuple(t.shape)
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    data = bytearray(t.cast(TO_TINY[dtype]).contiguous().realize().data())
    return torch.frombuffer(data, dtype=dtype).reshape(shape).clone()


class Check(TorchDispatchMode):
    def __init__(self, skip_random=True):
        super().__init__()
        self.passed, self.missing, self.failed = Counter(), Counter(), {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = name_of(func)
        lowering = LOWERINGS.get(name)
        if lowering is None:
            if not func.is_view and not func._schema.is_mutable:
                self.missing[name] += 1
            return func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:
            return func(*args, **kwargs)
        schema = func._schema
        bound = dict(zip([a.name for a in schema.arguments], args)) | kwargs
        positional, keyword = [], {}
        tiny = lambda v: to_tiny(v) if isinstance(v, torch.Tensor) else [tiny(x) for x in v] if isinstance(v, (list, tuple)) else v  # noqa: E731
        for a in schema.arguments:
            v = tiny(bound.get(a.name, a.default_value))
            if a.kwarg_only:
                keyword[a.name] = v
            else:
                positional.append(v)
        want = func(*args, **kwargs)
        wants = [want] if isinstance(want, torch.Tensor) else list(want)
        if wants and isinstance(wants[0], (list, tuple)):
            wants = list(wants[0])
        try:
            got = lowering(positional, keyword, meta=tuple(Meta(tuple(w.shape), w.dtype) if isinstance(w, torch.Tensor) else None for w in wants))
            gots = list(got) if isinstance(got, (list, tuple)) else [got]
            assert len(gots) == len(wants), f"{len(gots)} results, expected {len(wants)}"
            for g, w in zip(gots, wants):
                if not isinstance(w, torch.Tensor):
                    continue
                if g is None:
                    continue
                assert tuple(g.shape) == tuple(w.shape), f"shape {tuple(g.shape)}, expected {tuple(w.shape)}"
                torch.testing.assert_close(to_torch(g, w.dtype), w.detach(), equal_nan=True)
            self.passed[name] += 1
        except Exception as e:
            if name not in self.failed:
                short = [(tuple(a.shape), a.dtype) if isinstance(a, torch.Tensor) else a for a in args]
                self.failed[name] = f"{type(e).__name__}: {str(e)[:600]}\n   args {short} {kwargs}\n" + "".join(traceback.format_tb(e.__traceback__)[-2:])
        return want


def main():
    from torch.testing._internal.common_methods_invocations import op_db

    parser = argparse.ArgumentParser()
    parser.add_argument("ops", nargs="*")
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--no-grad", action="store_true")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    assert lower and Device.DEFAULT
    for info in op_db:
        if options.ops and info.name not in options.ops:
            continue
        if dtype not in info.supported_dtypes("cpu"):
            continue
        check = Check()
        grad = not options.no_grad and dtype.is_floating_point and info.supports_autograd
        torch.manual_seed(0)
        for i, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=grad)):
            if i >= options.samples:
                break
            try:
                with check:
                    result = info(sample.input, *sample.args, **sample.kwargs)
                    results = result if isinstance(result, (tuple, list)) else [result]
                    outs = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
                    if grad and outs:
                        sum(o.sum() for o in outs).backward()
            except Exception as e:
                check.failed["sample"] = f"{type(e).__name__}: {e}"
        state = "FAIL" if check.failed else "missing" if check.missing else "ok"
        print(f"{info.name:40s} {info.variant_test_name:12s} {state:8s} missing={dict(check.missing) or ''}", flush=True)
        for name, message in check.failed.items():
            print(f"    {name}: {message}", flush=True)


if __name__ == "__main__":
    main()
