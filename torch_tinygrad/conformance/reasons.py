"""Why operators run on the CPU, for the table: a pattern over the aten names that fell back, and the reason."""

from __future__ import annotations

import re

REASONS = (
    (
        r"_svd|_eigh|linalg_eig|eigvals|pinv",
        "singular vectors and eigenvectors are only determined up to sign or phase: LAPACK's choice",
    ),
    (r"ldl", "pivots in blocks of two: LAPACK's Bunch and Kaufman"),
    (r"lstsq", "the rank decides the solution: LAPACK's pivoted QR"),
    (r"linalg|cholesky|qr|lu_|triangular|det", "complex numbers: LAPACK"),
    (r"unique_dim", "the number of distinct slices depends on values"),
    (r"sparse|to_dense|coalesce", "sparse layouts are the CPU's"),
)


def reason_for(names: str) -> str:
    for pattern, reason in REASONS:
        if re.search(pattern, names):
            return reason
    return "no lowering yet"
