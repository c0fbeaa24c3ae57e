"""Checks one operator for one dtype, aspect by aspect: forward, non-contiguous, backward, in-place, out= and errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from torch_tinygrad import tiny

from .compare import BACKWARD, FORWARD, compare_errors, compare_results
from .samples import Call, chosen, placed

ASPECTS = ("forward", "noncontiguous", "backward", "inplace", "out", "errors")
UNINITIALISED = frozenset(
    (
        "empty",
        "empty_like",
        "empty_strided",
        "empty_permuted",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    )
)


class TypeLacking(Exception):
    """A sample wants tensors of a type that the hardware has not: it says nothing about the operator."""


def is_typed(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor | torch.dtype)


@dataclass
class Outcome:
    """How one aspect of an operator went: samples passed and failed, and what was wrong with the first few. Samples of
    types that the device lacks are neither: `notes` counts them."""

    passed: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, label: str, check: Callable[[], None]) -> None:
        try:
            check()
        except TypeLacking:
            self.notes["types"] = self.notes.get("types", 0) + 1
        except Exception as error:
            self.failed += 1
            if len(self.failures) < 3:
                self.failures.append(f"{label}: {type(error).__name__}: {str(error).strip()[:600]}")
        else:
            self.passed += 1


class Dispatched(TorchDispatchMode):
    """Lists the aten overloads that a call dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.overloads: set[torch._ops.OpOverload] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.overloads.add(function)
        return function(*args, **(kwargs or {}))

    @property
    def random(self) -> bool:
        return any(torch.Tag.nondeterministic_seeded in o.tags for o in self.overloads)


def raise_again(error: Exception) -> None:
    raise error


def attempt(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    torch.manual_seed(0)
    try:
        return function(), None
    except Exception as error:
        return None, error


class Check:
    """One operator, one dtype, one device."""

    def __init__(self, info, dtype: torch.dtype, samples: int, device: str):
        self.info, self.dtype, self.count, self.device = info, dtype, samples, device
        self.prepared: dict[bool, list[tuple[str, Any, Dispatched]]] = {}

    def applies(self, aspect: str) -> bool:
        info = self.info
        if aspect == "errors":
            return info.error_inputs_func is not None and self.dtype is torch.float32
        if self.dtype not in info.supported_dtypes("cpu"):
            return False
        if aspect == "backward":
            return info.supports_autograd and self.dtype in info.supported_backward_dtypes("cpu")
        return {"inplace": info.get_inplace() is not None, "out": info.supports_out}.get(aspect, True)

    def run(self, aspect: str) -> Outcome:
        outcome = Outcome()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = self.fallbacks()
            try:
                for label, check in getattr(self, aspect)(outcome):
                    outcome.add(label, check)
            except Exception as error:
                outcome.add("making samples", partial(raise_again, error))
            after = self.fallbacks()
        used = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
        if used:
            outcome.notes["fallbacks"] = used
        return outcome

    def fallbacks(self) -> dict[str, int]:
        return dict(tiny.stats()["fallbacks"]) if self.device.startswith("tiny") else {}

    def samples(self, requires_grad: bool = False) -> list[tuple[str, Any, Dispatched]]:
        """The samples, each with what it dispatches on the CPU. Aspects share them: every call gets copies."""
        if requires_grad not in self.prepared:
            numbered = chosen(self.info, self.dtype, self.count, requires_grad)
            self.prepared[requires_grad] = [(f"sample {n}", sample, self.dispatched(sample)) for n, sample in numbered]
        return self.prepared[requires_grad]

    def placed(self, sample, device: str, noncontiguous: bool = False) -> Call:
        return placed(sample, device, noncontiguous, self.info.name)

    def dispatched(self, sample) -> Dispatched:
        call, mode = self.placed(sample, "cpu"), Dispatched()

        def under_mode():
            with mode:
                self.info(call.input, *call.args, **call.kwargs)

        attempt(under_mode)
        return mode

    def values_matter(self, mode: Dispatched) -> bool:
        """Whether a result is a function of the arguments."""
        return self.info.name not in UNINITIALISED and not mode.random

    def both(
        self, function: Callable[[Call], Any], sample, noncontiguous: bool, tolerances: dict, values: bool
    ) -> None:
        """Calls a function with the sample on both devices and compares what comes back."""
        want, want_error = attempt(lambda: function(self.placed(sample, "cpu", noncontiguous)))
        got, got_error = attempt(lambda: function(self.placed(sample, self.device, noncontiguous)))
        if isinstance(got_error, TypeError) and self.wants_what_lacks(sample):
            raise TypeLacking
        compare_errors(want_error, got_error)
        if want_error is None:
            compare_results(want, got, self.device.split(":")[0], tolerances, values)

    def wants_what_lacks(self, sample) -> bool:
        """Whether the sample names a type that the device lacks, or has a result of one."""
        result, _ = attempt(lambda: self.call(self.placed(sample, "cpu")))
        leaves, _ = tree_flatten((sample.input, sample.args, sample.kwargs, result))
        types = {leaf.dtype if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves if is_typed(leaf)}
        return not types <= set(tiny.get_device_capability()["supported_dtypes"])

    # ------------------------------------------------------------------------------------------------------- aspects

    def call(self, call: Call) -> Any:
        return call.of(self.info)

    def forward(self, outcome: Outcome, noncontiguous: bool = False):
        for label, sample, mode in self.samples():
            yield label, partial(self.both, self.call, sample, noncontiguous, FORWARD, self.values_matter(mode))
        overloads = {o for _, _, mode in self.samples() for o in mode.overloads if not o.is_view}
        outcome.notes["dispatches"] = sorted(map(str, overloads))

    def noncontiguous(self, outcome: Outcome):
        yield from self.forward(outcome, noncontiguous=True)
        outcome.notes.clear()

    def backward(self, outcome: Outcome):
        def gradients(sample):
            def run(call: Call):
                result = self.info.gradcheck_wrapper(self.info.op, call.input, *call.args, **call.kwargs)
                if sample.output_process_fn_grad is not None:
                    result = sample.output_process_fn_grad(result)
                outs = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
                ins = [t for t in tree_flatten(tuple(call))[0] if isinstance(t, torch.Tensor) and t.requires_grad]
                if not outs or not ins:
                    return []
                seeds = torch.Generator().manual_seed(1)
                given = [torch.randn(o.shape, dtype=o.dtype, generator=seeds).to(o.device) for o in outs]
                found = torch.autograd.grad(outs, ins, given, allow_unused=True)
                return [g if g is None else g.detach() for g in found]

            return run

        for label, sample, mode in self.samples(requires_grad=True):
            yield label, partial(self.both, gradients(sample), sample, False, BACKWARD, self.values_matter(mode))

    def inplace(self, outcome: Outcome):
        function = self.info.get_inplace()

        def run(call: Call):
            result = function(call.input, *call.args, **call.kwargs)
            return result, call.input, result is call.input

        for label, sample, mode in self.samples():
            if not sample.broadcasts_input:
                yield label, partial(self.both, run, sample, False, FORWARD, self.values_matter(mode))

    def out(self, outcome: Outcome):
        """What `out=` holds is what the function returns: some of the CPU's kernels write it elsewhere."""

        def run(want, make, values, call: Call):
            device = torch.device(call.kwargs.get("device", call.device or self.device_of(call)))
            out = tree_map(lambda t: make(t.detach(), device), want)
            result = call.of(self.info, out=out)
            if values and device.type == "cpu":
                tree_map(lambda held, value: held.copy_(value.detach()), out, want)
            return result, out

        def check(sample, want, values):
            for make in OUTS.values():
                self.both(partial(run, want, make, values), sample, False, FORWARD, values)

        for label, sample, mode in self.samples():
            want, error = attempt(partial(self.call, self.placed(sample, "cpu")))
            if error is None and all(isinstance(t, torch.Tensor) for t in tree_flatten(want)[0]):
                yield label, partial(check, sample, want, self.values_matter(mode))

    def device_of(self, call: Call) -> torch.device:
        return next(t.device for t in tree_flatten(tuple(call))[0] if isinstance(t, torch.Tensor))

    def errors(self, outcome: Outcome):
        for number, wrong in enumerate(self.info.error_inputs("cpu")):
            sample = wrong.sample_input
            _, error = attempt(partial(self.call, self.placed(sample, "cpu")))
            if error is not None:
                yield f"error input {number}", partial(self.both, self.call, sample, False, FORWARD, True)


def _exact(like: torch.Tensor, device) -> torch.Tensor:
    return torch.ones_like(like, device=device)


def _to_be_resized(like: torch.Tensor, device) -> torch.Tensor:
    return torch.empty(0, dtype=like.dtype, device=device)


def _strided(like: torch.Tensor, device) -> torch.Tensor:
    if not like.dim():
        return torch.ones_like(like, device=device)
    return torch.ones((*like.shape, 2), dtype=like.dtype, device=device)[..., 0]


# What `out=` may be given: the right strides, nothing yet, other strides.
OUTS = {"exact": _exact, "resized": _to_be_resized, "strided": _strided}


def check_operator(info, dtype: torch.dtype, samples: int, device: str, aspects) -> Iterator[tuple[str, dict | None]]:
    """Yields (aspect, None) when an aspect begins and (aspect, its outcome) when it is done."""
    check = Check(info, dtype, samples, device)
    for aspect in aspects:
        if check.applies(aspect):
            yield aspect, None
            yield aspect, asdict(check.run(aspect))
