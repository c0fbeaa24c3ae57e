"""Functions that few programs call: Bessel, Airy, zeta, incomplete gamma, orthogonal polynomials."""
