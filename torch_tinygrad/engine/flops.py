"""How many operations a library's step computes: what PyTorch counts, and for what it does not the counts that are
usual in linear algebra (LAPACK's working note 41; of iterations Golub and Van Loan's) and of Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2, prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from torch_tinygrad.trace.forms import overload_of, schema_of
from torch_tinygrad.values.steps import AtenStep

Shape = Sequence[int]
OF_EACH_ELEMENT = 5  # of a softmax: a maximum, a difference, an exponential, a sum, a quotient


def _lu(m: int, n: int) -> float:
    long, short = max(m, n), min(m, n)
    return long * short**2 - short**3 / 3


def _qr(m: int, n: int) -> float:
    return 2 * _lu(m, n)


def _svd(m: int, n: int) -> float:
    long, short = max(m, n), min(m, n)
    return 4 * long**2 * short + 8 * long * short**2 + 9 * short**3


def _of_one(count: Callable[[int, int], float], which: int = 0) -> Callable:
    """Counts by the rows and columns of an argument, for each matrix of a batch."""
    return lambda args, results: prod(args[which][:-2]) * count(*args[which][-2:])


def _of_system(count: Callable[[int, int], float], matrix: int, right: int) -> Callable:
    """Counts by the rows of a matrix and the columns of right sides, which may be a vector."""

    def counted(args: Sequence[Any], results: Sequence[Shape]) -> float:
        n, elements = args[matrix][-1], prod(args[right])
        batch = prod(args[matrix][:-2])
        return batch * count(n, max(elements // max(n * batch, 1), 1))

    return counted


def _transform(part: float) -> Callable:
    def counted(args: Sequence[Any], results: Sequence[Shape]) -> float:
        whole = args[0] if prod(args[0]) >= prod(results[0]) else results[0]
        lengths = prod(whole[d] for d in args[1])
        return part * 5 * prod(whole) * log2(max(lengths, 2))

    return counted


def _elements(args: Sequence[Any], results: Sequence[Shape]) -> float:
    return OF_EACH_ELEMENT * prod(args[0])


def _attention(products: int, query: int) -> Callable:
    """Products of queries, keys and values with each other: 2 in the forward pass, 5 in the backward pass."""

    def counted(args: Sequence[Any], results: Sequence[Shape]) -> float:
        q, k = args[query], args[query + 1]
        return products * 2 * prod(q) * k[-2]

    return counted


# By operator, from the shapes of its arguments (numbers and lists as they are) and of its results.
COUNTED: dict[str, Callable[[Sequence[Any], Sequence[Shape]], float]] = {
    **dict.fromkeys(("linalg_lu_factor_ex", "linalg_lu", "_linalg_det", "_linalg_slogdet"), _of_one(_lu)),
    "linalg_inv_ex": _of_one(lambda m, n: 2 * n**3),
    "_linalg_solve_ex": _of_system(lambda n, k: 2 * n**3 / 3 + 2 * n**2 * k, 0, 1),
    "linalg_lu_solve": _of_system(lambda n, k: 2 * n**2 * k, 0, 2),
    "linalg_solve_triangular": _of_system(lambda n, k: n**2 * k, 0, 1),
    "triangular_solve": _of_system(lambda n, k: n**2 * k, 1, 0),
    **dict.fromkeys(("linalg_cholesky_ex", "cholesky"), _of_one(lambda m, n: n**3 / 3)),
    "_cholesky_solve_helper": _of_system(lambda n, k: 2 * n**2 * k, 1, 0),
    "cholesky_inverse": _of_one(lambda m, n: 2 * n**3 / 3),
    "geqrf": _of_one(_qr),
    "linalg_qr": _of_one(lambda m, n: 2 * _qr(m, n)),
    "linalg_householder_product": _of_one(_qr),
    "_linalg_svd": _of_one(_svd),
    "_linalg_eigh": _of_one(lambda m, n: 9 * n**3),
    "linalg_eig": _of_one(lambda m, n: 25 * n**3),
    **dict.fromkeys(("_softmax", "_log_softmax"), _elements),
    "_fft_c2c": _transform(1),
    **dict.fromkeys(("_fft_r2c", "_fft_c2r"), _transform(0.5)),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(2, 0),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(5, 1),
}  # fmt: skip


def flops_of(step: AtenStep) -> int:
    """0 for what nobody counts: selections, sorts, copies."""
    arguments: list = list(step.arguments)
    for path, operand in zip(step.paths, step.inputs, strict=True):
        if len(path) == 1:
            arguments[path[0]] = torch.Size(operand.shape)
    shapes = tuple(None if result is None else torch.Size(result.shape) for result in step.results)
    packet = overload_of(step.op).overloadpacket
    if own := COUNTED.get(packet.__name__):
        return int(own(arguments, [shape for shape in shapes if shape is not None]))
    if (formula := flop_registry.get(packet)) is None:
        return 0
    given: dict[bool, dict] = {False: {}, True: {}}
    for (name, is_keyword, _), value in zip(schema_of(step.op), arguments, strict=False):
        given[is_keyword][name] = value
    return int(formula(*given[False].values(), **given[True], out_val=shapes[0] if len(shapes) == 1 else shapes))
