"""What the recorder asks about operators, and which it registers itself for."""

from __future__ import annotations

import os
import warnings

import torch

from .data_dependent import KERNELS
from .facts import facts
from .trace.decompose import has_decomposition
from .trace.forms import form_of, has_form, is_random, overload_of
from .trace.pointwise import is_pointwise
from .trace.recurrent import BACKWARD, FORWARD

# Operators that take index tensors, which PyTorch lets users keep on the CPU.
INDEXING = {
    "aten::index.Tensor",
    "aten::index_put_",
    "aten::index_put",
    "aten::_index_put_impl_",
    "aten::_unsafe_index.Tensor",
}

DEPEND_ON_VALUES = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}

# Operators that refuse arguments by their values: stand-ins cannot be asked.
REFUSE_VALUES = {"aten::segment_reduce", "aten::_segment_reduce_backward"}

# LAPACK's iterations, which PyTorch raises an error for where they do not converge (NaN, for one).
MAY_NOT_CONVERGE = {
    "aten::_linalg_eigh",
    "aten::_linalg_eigvals",
    "aten::_linalg_svd",
    "aten::linalg_eig",
    "aten::linalg_lstsq",
}

# Composite kernels that must stay: they allocate, choose devices, are views, or clone a whole storage.
KEEP_COMPOSITE = {"aten::_to_copy", "aten::copy_", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided",
                  "aten::resize_as_", "aten::set_.source_Tensor", "aten::lift", "aten::lift_fresh",
                  "aten::_unsafe_view", "aten::select_scatter", "aten::slice_scatter", "aten::diagonal_scatter",
                  "aten::as_strided_scatter"}  # fmt: skip

# Composite kernels that call the CPU's loops directly, or lay results out as only they know.
NO_COMPOSITE = {
    "aten::conj_physical_",
    "aten::cummax.out",
    "aten::cummin.out",
    "aten::mode.values",
    "aten::linalg_lstsq",
}


class FallbackWarning(UserWarning):
    """An operator has no kernel for the device and ran on the CPU."""


_warned: set[str] = set()


def warn_fallback(name: str) -> None:
    if os.environ.get("TORCH_TINY_FALLBACK") == "error":
        raise NotImplementedError(
            f"{name} has no lowering for the tiny device, and TORCH_TINY_FALLBACK=error forbids to run it on the CPU"
        )
    if name not in _warned:
        _warned.add(name)
        warnings.warn(f"{name} has no lowering for the tiny device and runs on the CPU", FallbackWarning, stacklevel=2)


def op_traits(name: str) -> dict:
    """Which arguments may become inputs of a program, which are written beyond what the schema says, and the like."""
    overload = overload_of(name)
    lifts: list[int] = []
    try:
        form = form_of(name)
    except LookupError:
        form = None
    lowered = facts().lifts
    if form is not None and (names := lowered.get(form.op)) is not None:
        target = overload_of(form.op)._schema.arguments
        lifts = [p for p, a in zip(form.arguments, target, strict=True) if p >= 0 and a.name in names]
    writes = [3, 4] if overload._schema.name == "aten::native_batch_norm" else []
    if os.environ.get("TORCH_TINY_FALLBACK") == "error" and form is not None:
        if form.op not in (*lowered, *facts().complex_alone, FORWARD, BACKWARD) and not has_decomposition(form.op):
            warn_fallback(name)
    tags = overload.tags
    formatted = any(a.name == "memory_format" for a in overload._schema.arguments)
    return {
        "lifts": lifts,
        "writes": writes,
        "random": is_random(name),
        "index": name in INDEXING,
        "iterated": torch.Tag.pointwise in tags and not formatted,
        # Masks among indices are places by then, whose shape is known.
        "dynamic": (bool(DEPEND_ON_VALUES & set(tags)) and name not in INDEXING)
        or overload._schema.name in REFUSE_VALUES,
        "refuses": overload._schema.name in MAY_NOT_CONVERGE,
        "pointwise": form is not None and is_pointwise(form.op),
    }


def _has_kernel(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def recorded_names(lowered: set[str]) -> list[str]:
    """Operators whose composite kernels would otherwise hide them from the recorder: structured ones, foreach forms,
    and whatever else has a lowering of its own."""
    names = []
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::") or name in KEEP_COMPOSITE or _has_kernel(name, "PrivateUse1"):
            continue
        if name.removeprefix("aten::") in KERNELS:
            continue
        if _has_kernel(name, "CompositeImplicitAutograd"):
            continue
        structured = _has_kernel(name, "CompositeExplicitAutogradNonFunctional")
        explicit = _has_kernel(name, "CompositeExplicitAutograd")
        if structured or name.startswith("aten::_foreach_") or (explicit and (name in lowered or name in NO_COMPOSITE)):
            try:
                overload = overload_of(name)
            except (AttributeError, RuntimeError):
                continue
            if not overload.is_view and torch.Tag.inplace_view not in overload.tags and has_form(name):
                names.append(name.removeprefix("aten::"))
    return names
