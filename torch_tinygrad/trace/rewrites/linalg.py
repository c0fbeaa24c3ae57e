"""Operators of linear algebra written in factorisations. Real numbers only: complex ones are the CPU's."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from .registry import rewrites

aten = torch.ops.aten


def of_real_numbers(function: Callable) -> Callable:
    @functools.wraps(function)
    def rewrite(a: Tensor, *args, **kwargs):
        return NotImplemented if a.is_complex() else function(a, *args, **kwargs)

    return rewrite


def factored(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """LU of `a`, or of its transpose where it is contiguous: derivatives of determinants expect just that."""
    return aten.linalg_lu_factor_ex(a.mT if a.is_contiguous() else a)


def swaps_sign(pivots: Tensor) -> Tensor:
    """-1 for an odd number of swaps, else 1."""
    places = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return 1 - 2 * ((pivots != places).sum(-1) % 2)


@rewrites(aten._linalg_det.default)
@of_real_numbers
def det(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lu, pivots, _ = factored(a)
    return lu.diagonal(dim1=-2, dim2=-1).prod(-1) * swaps_sign(pivots), lu, pivots


@rewrites(aten._linalg_slogdet.default)
@of_real_numbers
def slogdet(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lu, pivots, _ = factored(a)
    diagonal = lu.diagonal(dim1=-2, dim2=-1)
    return diagonal.sgn().prod(-1) * swaps_sign(pivots), diagonal.abs().log().sum(-1), lu, pivots


@rewrites(aten._linalg_solve_ex.default)
@of_real_numbers
def solve(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False):
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    lu, pivots, info = aten.linalg_lu_factor_ex(a)
    columns = b.unsqueeze(-1) if is_vector else b
    x = aten.linalg_lu_solve(lu, pivots, columns, left=left)
    return x.squeeze(-1) if is_vector else x, lu, pivots, info


@rewrites(aten.linalg_inv_ex.default)
@of_real_numbers
def inv(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    lu, pivots, info = aten.linalg_lu_factor_ex(a)
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    return aten.linalg_lu_solve(lu, pivots, identity.expand_as(a)), info


@rewrites(aten.linalg_lu.default)
@of_real_numbers
def lu(a: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    factors, pivots, _ = aten.linalg_lu_factor_ex(a, pivot=pivot)
    return aten.lu_unpack(factors, pivots, unpack_pivots=pivot)


@rewrites(*([aten.cholesky.default] if hasattr(aten, "cholesky") else []))  # torch 2.15 has none
@of_real_numbers
def cholesky(a: Tensor, upper: bool = False) -> Tensor:
    return aten.linalg_cholesky_ex(a, upper=upper)[0]


@rewrites(aten.cholesky_solve.default)
@of_real_numbers
def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lead = torch.broadcast_shapes(b.shape[:-2], factor.shape[:-2])
    return aten._cholesky_solve_helper(b.expand(*lead, *b.shape[-2:]), factor.expand(*lead, *factor.shape[-2:]), upper)
