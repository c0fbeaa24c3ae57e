"""Why operators run on the CPU, for the table: a pattern over the aten names that fell back, and the reason."""

from __future__ import annotations

import re

REASONS = (
    (r"linalg|cholesky|qr|svd|eig|lu_|triangular|ormqr|householder|lstsq|geqrf|det", "dense factorisation: LAPACK"),
    (r"fft", "Fourier transform: pocketfft"),
    (
        r"special_|lgamma|digamma|polygamma|igamma|erfinv|zeta|bessel|airy|ndtri",
        "special function without a closed form",
    ),
    (r"histogram|histc|bincount|unique|searchsorted|bucketize", "the result's size or bins depend on data"),
    (r"sparse|to_dense|coalesce", "sparse layouts are the CPU's"),
    (r"ctc|segment_reduce|grid_sampler|embedding_bag", "irregular access without a lowering yet"),
)


def reason_for(names: str) -> str:
    for pattern, reason in REASONS:
        if re.search(pattern, names):
            return reason
    return "no lowering yet"
