"""Operators whose result's shape depends on values: they count on the device, read one number, and go on lazily."""

from __future__ import annotations

import torch

from . import _C

aten = torch.ops.aten


def nonzero(x: torch.Tensor) -> torch.Tensor:
    """Index by index in memory, as on the CPU."""
    if (found := _C.nonzero_by_library(x)) is not None:
        return found
    found = aten.nonzero_static(x, size=int(torch.count_nonzero(x)), fill_value=0)
    stride = (1, found.shape[0])
    if x.dim() < 2:
        return found.as_strided_(found.shape, stride)
    return torch.empty_strided(found.shape, stride, dtype=found.dtype, device=x.device).copy_(found)


def _check_devices(x: torch.Tensor, out: torch.Tensor) -> None:
    if out.device != x.device:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{x.device} and {out.device}! (when checking argument for argument out)"
        )


def nonzero_out(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    _check_devices(x, out)
    if out.dtype is not torch.int64:
        aten.nonzero(x.cpu(), out=out.cpu())  # raises
    found = nonzero(x)
    if out.shape != found.shape:
        aten._resize_output_(out, found.shape, out.device)
        out.as_strided_(found.shape, found.stride())
    return out.copy_(found)


def masked_select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype is not torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    mask, x = torch.broadcast_tensors(mask, x)  # which an error names in this order
    return x.reshape(-1).index_select(0, nonzero(mask.reshape(-1)).reshape(-1))


def masked_select_out(x: torch.Tensor, mask: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    _check_devices(x, out)
    storage = out.untyped_storage().data_ptr()
    shared = any(t.numel() and t.untyped_storage().data_ptr() == storage for t in (x, mask))
    if shared or torch._debug_has_internal_overlap(out) == 1 or out.dtype != x.dtype:
        stand_ins = _zeros_on_cpu(x, mask, out)
        aten.masked_select(*stand_ins[:2], out=stand_ins[2])  # raises where dtypes differ or memory overlaps
    found = masked_select(x, mask)
    aten._resize_output_(out, found.shape, out.device)
    return out.copy_(found)


def _zeros_on_cpu(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Tensors of the same geometry that share memory where the given ones do."""
    storages: dict[int, torch.UntypedStorage] = {}
    for t in tensors:
        given = t.untyped_storage()
        storages.setdefault(given.data_ptr(), torch.zeros(given.nbytes(), dtype=torch.uint8).untyped_storage())
    return [
        torch.empty(0, dtype=t.dtype).set_(
            storages[t.untyped_storage().data_ptr()], t.storage_offset(), t.size(), t.stride()
        )
        for t in tensors
    ]


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype:  # which PyTorch's versions answer differently
        return aten.equal(a.cpu(), b.cpu())
    return a.shape == b.shape and bool((a == b).all())


def repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    if repeats.dim() != 1 or repeats.dtype not in (torch.int32, torch.int64):
        aten.repeat_interleave(torch.zeros_like(repeats, device="cpu"))  # raises, unless there are none
    if not repeats.numel():
        return torch.empty_like(repeats)
    ends = repeats.cumsum(0)
    if output_size is None:
        lowest, total = torch.stack([repeats.min().long(), ends[-1]]).tolist() if repeats.numel() else (0, 0)
        if lowest < 0:
            raise RuntimeError("repeats can not be negative")
        output_size = int(total)
    else:
        torch.empty(output_size)  # refuses negative ones
        _C.assert_within(ends[-1], output_size, output_size, "allocated size does not match required size")
    places = torch.arange(output_size, device=repeats.device, dtype=ends.dtype)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype)


def _runs(ordered: torch.Tensor, inverse: bool, counts: bool):
    """Distinct neighbours of a 1-D tensor: the values, which of them each element is, how long each run is."""
    n = ordered.numel()
    starts = torch.ones(n, dtype=torch.bool, device=ordered.device)
    if n > 1:
        starts[1:] = ordered[1:] != ordered[:-1]
    first = nonzero(starts).reshape(-1)
    values = ordered[first]
    which = starts.cumsum(0) - 1 if inverse else None
    ends = torch.cat([first[1:], torch.full((1,), n, dtype=first.dtype, device=first.device)]) if n else first
    return values, which, ends - first if counts else None


def _empty(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.int64, device=x.device)


def unique2(x: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False):
    if x.is_complex():
        aten._unique2(x.cpu(), sorted, return_inverse, return_counts)  # raises
    ordered, order = x.reshape(-1).sort(stable=True)
    values, which, counts = _runs(ordered, return_inverse, return_counts)
    inverse = _empty(x)
    if which is not None:
        inverse = torch.empty_like(which).scatter_(0, order, which).reshape(x.shape)
    return values, inverse, _empty(x) if counts is None else counts


def unique_consecutive(
    x: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
):
    if dim is not None and not -x.dim() <= dim < x.dim():
        aten.unique_consecutive(torch.empty_like(x, device="cpu"), return_inverse, return_counts, dim)  # raises
    if dim is not None and x.dim() > 1:
        return tuple(t.to(x.device) for t in aten.unique_consecutive(x.cpu(), return_inverse, return_counts, dim))
    values, which, counts = _runs(x.reshape(-1), return_inverse, return_counts)
    inverse = _empty(x) if which is None else which.reshape(x.shape)
    return values, inverse, _empty(x) if counts is None else counts


def bincount(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    if x.dim() != 1 or x.is_floating_point() or x.dtype is torch.bool:
        aten.bincount(x.cpu(), None if weights is None else weights.cpu(), minlength)  # raises
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    if x.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=x.device)
    lowest, highest = torch.stack(torch.aminmax(x)).tolist()
    if lowest < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != x.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    out = torch.zeros(max(int(highest) + 1, minlength), dtype=dtype, device=x.device)
    ones = torch.ones((), dtype=dtype, device=x.device).expand(x.shape) if weights is None else weights.to(dtype)
    return out.index_add_(0, x.long(), ones)


KERNELS = {
    "nonzero": nonzero,
    "nonzero.out": nonzero_out,
    "masked_select": masked_select,
    "masked_select.out": masked_select_out,
    "equal": equal,
    "repeat_interleave.Tensor": repeat_interleave,
    "_unique2": unique2,
    "unique_consecutive": unique_consecutive,
    "bincount": bincount,
}


def register() -> torch.library.Library:
    """Registers the kernels; they stay while the library object does."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in KERNELS.items():
        library.impl(name, kernel, "PrivateUse1")
    return library
