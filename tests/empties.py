"""Every operator of PyTorch's database with arguments that are empty: results and exceptions as on the CPU.

`python -m tests.empties [operators...]` tries them all and prints what differs; tests run a part of it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

from torch_tinygrad.conformance.compare import FORWARD, compare_errors, compare_results
from torch_tinygrad.conformance.runner import UNINITIALISED, Check, attempt
from torch_tinygrad.conformance.samples import chosen, placed

SAMPLES = 3
# Where the CPU returns what its memory held, or its library fails.
WRONG_ON_CPU = {
    "nn.functional.multi_margin_loss": "a loss over no classes is not written",
    "nn.functional.multilabel_margin_loss": "a loss over no classes is not written",
    "_segment_reduce": "`unsafe=True`: lengths are trusted, and read beyond its memory",
    "nn.functional.conv2d": "oneDNN has no convolution over no channels",
}

# Where the CPU ends the process, or words its refusal by what its memory looks like: operator → what it does, and for
# which calls.
UNSTEADY: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "nn.functional.embedding_bag": (
        "mode `max` with indices and no bag: reads beyond its memory; two messages for a table of no rows",
        lambda sample: (
            (sample.kwargs.get("mode") == "max" and not sample.kwargs["offsets"].numel()) or not sample.input.shape[0]
        ),
    ),
}


def without(t: torch.Tensor, size: int) -> torch.Tensor:
    """The part of a tensor that is left where every dimension of a size has none."""
    return t[tuple(slice(0, 0) if s == size else slice(None) for s in t.shape)] if size in t.shape else t


def emptied(sample) -> Iterator:
    """The sample with each of its sizes turned to nothing, wherever it occurs; masks select nothing, too."""
    parts = (sample.input, sample.args, sample.kwargs)
    tensors = [t for t in tree_flatten(parts)[0] if isinstance(t, torch.Tensor)]
    if any(t.layout is not torch.strided or t.is_quantized for t in tensors):
        return

    def with_each(change):
        changed = tree_map(lambda v: change(v.detach()) if isinstance(v, torch.Tensor) else v, parts)
        return replace_sample(sample, *changed)

    for size in sorted({s for t in tensors for s in t.shape} - {0}):
        yield f"without {size}", with_each(lambda t, size=size: without(t, size))
    if any(t.dtype is torch.bool for t in tensors):
        yield "nothing selected", with_each(lambda t: torch.zeros_like(t) if t.dtype is torch.bool else t)


def replace_sample(sample, given, args, kwargs):
    new = type(sample)(given, args=args, kwargs=kwargs)
    new.broadcasts_input, new.output_process_fn_grad = sample.broadcasts_input, sample.output_process_fn_grad
    return new


def difference(info, sample, device: str, check: Check) -> str | None:
    values = check.values_matter(check.dispatched(sample))

    def run(on: str):
        call = placed(sample, on, operator=info.name)
        result = call.of(info)
        return tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, result), call

    want, want_error = attempt(lambda: run("cpu"))
    got, got_error = attempt(lambda: run(device))
    try:
        compare_errors(want_error, got_error)
        if want_error is None:
            compare_results(want[0], got[0], device, FORWARD, values)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return None


def operators(names: list[str] | None = None) -> list:
    return [info for info in op_db if not names or info.name in names]


def search(infos, device: str, dtypes=(torch.float32, torch.int64, torch.bool)) -> Iterator[tuple[str, str | None]]:
    """(what was tried, how it differs) for every call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in infos:
            dtype = next((d for d in dtypes if d in info.supported_dtypes("cpu")), None)
            if dtype is None or info.name in UNINITIALISED or info.name in WRONG_ON_CPU:
                continue
            check = Check(info, dtype, SAMPLES, device)
            try:
                samples = list(chosen(info, dtype, SAMPLES, False))
            except Exception:
                continue
            for number, sample in samples:
                for what, empty in emptied(sample):
                    if info.name in UNSTEADY and UNSTEADY[info.name][1](empty):
                        continue
                    yield f"{info.formatted_name} {number} {what}", difference(info, empty, device, check)


if __name__ == "__main__":
    tried = wrong = 0
    for what, how in search(operators(sys.argv[1:]), "tiny"):
        tried += 1
        if how:
            wrong += 1
            print(f"{what}: {how}", flush=True)
    print(f"{tried} calls with empty arguments, {wrong} that differ")
    sys.exit(wrong > 0)
