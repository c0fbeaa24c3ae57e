"""When two results are the same: values within a tolerance, everything else exactly, exceptions word for word."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

# (relative, absolute) by dtype. Sums run in another order than on the CPU, so a few units in the last place are due;
# gradients chain several such sums.
FORWARD = {
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
    torch.float32: (1.3e-5, 1e-5),
    torch.complex64: (1.3e-5, 1e-5),
    torch.float16: (2e-3, 1e-3),
    torch.complex32: (2e-3, 1e-3),
    torch.bfloat16: (1.6e-2, 1e-2),
}
BACKWARD = {
    **FORWARD,
    torch.float32: (1e-4, 1e-4),
    torch.complex64: (1e-4, 1e-4),
    torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (3e-2, 3e-2),
}


class Mismatch(AssertionError):
    """The device's result differs from the CPU's."""


def message_of(error: BaseException) -> str:
    """An exception's text with the device's name and addresses taken out."""
    text = str(error).split("\nException raised from")[0]
    text = re.sub(r"\b(tiny|privateuseone|PrivateUse1)(:\d+)?\b", "cpu", text)
    text = re.sub(r",\s+device='cpu'", "", text)  # printed tensors say where they are, except on the CPU
    text = re.sub(r"\b(?:tiny|CPU)(\w+)Type\b", r"torch.\1Tensor", text)
    return re.sub(r"0x[0-9a-f]+", "0x", text).strip()


def significant_strides(t: torch.Tensor) -> tuple[int, ...]:
    """Strides that address something: of dimensions longer than one, in tensors that are not empty."""
    return tuple(st for s, st in zip(t.shape, t.stride(), strict=True) if s > 1) if t.numel() else ()


def compare_tensors(want: torch.Tensor, got: torch.Tensor, device: str, tolerances: dict, values: bool) -> None:
    for what, of in (
        ("dtype", lambda t: t.dtype),
        ("shape", lambda t: tuple(t.shape)),
        ("layout", lambda t: t.layout),
        ("requires_grad", lambda t: t.requires_grad),
    ):
        if of(want) != of(got):
            raise Mismatch(f"{what}: {of(got)}, on the CPU {of(want)}")
    if got.device.type != device:
        raise Mismatch(f"device: the result is on {got.device}")
    if want.layout is torch.strided and significant_strides(want) != significant_strides(got):
        raise Mismatch(f"strides of {tuple(want.shape)}: {got.stride()}, on the CPU {want.stride()}")
    if values:
        rtol, atol = tolerances.get(want.dtype, (0, 0))
        want, got = (t.detach().cpu().resolve_conj().resolve_neg() for t in (want, got))
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)


def compare_results(want: Any, got: Any, device: str, tolerances: dict = FORWARD, values: bool = True) -> None:
    """Compares nested results leaf by leaf; raises AssertionError at the first difference."""
    (wants, structure), (gots, other) = tree_flatten(want), tree_flatten(got)
    if len(wants) != len(gots):
        raise Mismatch(f"structure: {other}, on the CPU {structure}")
    for w, g in zip(wants, gots, strict=True):
        if isinstance(w, torch.Tensor) != isinstance(g, torch.Tensor):
            raise Mismatch(f"a {type(g).__name__}, on the CPU a {type(w).__name__}")
        if isinstance(w, torch.Tensor):
            compare_tensors(w, g, device, tolerances, values)
        elif isinstance(w, (bool, int, float, complex)):
            if values:
                torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5, equal_nan=True)
        elif not isinstance(w, torch.device) and w != g:
            raise Mismatch(f"{g!r}, on the CPU {w!r}")


def compare_errors(want: BaseException | None, got: BaseException | None) -> None:
    """Both raised the same type and message, or neither raised."""
    if got is None:
        if want is None:
            return
        raise Mismatch(f"no exception, on the CPU {type(want).__name__}: {message_of(want)}")
    if want is None:
        raise Mismatch(f"raises {type(got).__name__}: {str(got).strip()}") from got
    if (type(want).__name__, message_of(want)) != (type(got).__name__, message_of(got)):
        told = f"{type(got).__name__}: {message_of(got)!r}, on the CPU {type(want).__name__}: {message_of(want)!r}"
        raise Mismatch(f"exceptions differ: {told}") from got
