"""Every function of floats that the device has a lowering for, beside what mpmath says it is, and the arguments that
tell the two apart: zeros, poles, and where implementations change from one formula to another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from mpmath import mp
from torch import special

from .accuracy import chosen

INF, NAN = math.inf, math.nan
F32, F64 = torch.float32, torch.float64
TWO = {F32: 2.0, F64: 2.0}
# What is not within two units says why here, and in docs/differences.md.
SHORT_FORM = {F32: INF, F64: 2.0}  # a network's gelu in float32 is as exact as 1 is, not its tail
SUMMED = {F32: 2.0, F64: 8.0}  # sums of ten powers, whose bases are rounded: the CPU's
LONG_SUMS = {F32: 2.0, F64: INF}  # hundreds of terms, or a power with a large exponent: the CPU loses more


def relative(*given) -> float:
    return 0.0


def above(size: float) -> Callable:
    return lambda *given: size


def larger(x, y):
    return max(abs(x), abs(y))


def waves_height(near: float) -> Callable:
    """That of a Bessel function's waves, from where they begin."""
    return lambda x: mp.sqrt(2 / (mp.pi * abs(x))) if abs(x) > 5 else near


def airy_height(x) -> float:
    """That of its waves, left of zero."""
    return 1 / mp.sqrt(mp.pi * mp.sqrt(-x)) if x < -2 else 0.0


@dataclass(frozen=True)
class Function:
    compute: Callable
    exactly: Callable
    # of each argument: from where, to where, and points of interest
    ranges: tuple[tuple[float, float, tuple[float, ...]], ...]
    precision: int = 200
    # errors are counted in units of the last place of numbers of at least this size: near zeros of the function
    least: Callable = relative
    bound: dict[torch.dtype, float] = field(default_factory=lambda: TWO)

    def arguments(self, dtype: torch.dtype, count: int) -> tuple[torch.Tensor, ...]:
        columns = [chosen(dtype, *r, count, seed) for seed, r in enumerate(self.ranges)]
        if len(columns) == 1:
            return (columns[0],)
        generator = torch.Generator().manual_seed(7)
        size = max(len(c) for c in columns)
        return tuple(c[torch.randint(len(c), (size,), generator=generator)] for c in columns)


def one(compute, exactly, low=-INF, high=INF, points=(), precision=200, least=relative, bound=TWO) -> Function:
    return Function(compute, exactly, ((low, high, tuple(points)),), precision, least, bound)


def two(compute, exactly, first=(-INF, INF, ()), second=(-INF, INF, ()), precision=200, least=relative, bound=TWO):
    return Function(compute, exactly, (first, second), precision, least, bound)


# ---- exact values that mpmath does not have under one name, or only within its own bounds --------------------------


def ratio_at_zero(value, at_zero):
    """A function that is a quotient of zeros at 0."""
    return lambda x: mp.mpf(at_zero) if x == 0 else value(x)


def log_gamma(x):
    if x <= 0 and x == mp.floor(x):
        return mp.inf
    return mp.re(mp.loggamma(x))


def digamma(x):
    if x == 0:
        return -mp.inf
    return mp.nan if x < 0 and x == mp.floor(x) else mp.digamma(x)


def scaled_i(order):
    def value(x):
        if abs(x) > 1e4:
            return mp.sign(x) ** order * asymptotic(order, abs(x), -1)[0] / mp.sqrt(2 * mp.pi * abs(x))
        return mp.besseli(order, x) * mp.exp(-abs(x))

    return value


def scaled_k(order):
    def value(x):
        if x == 0:
            return mp.inf
        if x > 1e4:
            return asymptotic(order, x, 1)[0] * mp.sqrt(mp.pi / (2 * x))
        return mp.besselk(order, x) * mp.exp(x)

    return value


def asymptotic(order, x, sign):
    """Hankel's sum of sign**k a_k(order) / x**k."""
    term, total, k = mp.mpf(1), mp.mpf(1), 0
    while abs(term) > mp.eps and k < 60:
        k += 1
        term = term * sign * (4 * order * order - (2 * k - 1) ** 2) / (k * 8 * x)
        total += term
    return total, None


def waves(order, x):
    """P and Q of Hankel's expansions."""
    p, q, term, k = mp.mpf(1), mp.mpf(0), mp.mpf(1), 0
    while abs(term) > mp.eps and k < 60:
        k += 1
        term = term * (4 * order * order - (2 * k - 1) ** 2) / (k * 8 * x)
        if k % 2:
            q += term * (-1) ** (k // 2)
        else:
            p += term * (-1) ** (k // 2)
    return p, q


def bessel_j(order):
    def value(x):
        if abs(x) <= 100:
            return mp.besselj(order, x)
        p, q = waves(order, abs(x))
        angle = abs(x) - (2 * order + 1) * mp.pi / 4
        value = mp.sqrt(2 / (mp.pi * abs(x))) * (p * mp.cos(angle) - q * mp.sin(angle))
        return -value if order and x < 0 else value

    return value


def bessel_y(order):
    def value(x):
        if x == 0:
            return -mp.inf
        if x <= 100:
            return mp.bessely(order, x)
        p, q = waves(order, x)
        angle = x - (2 * order + 1) * mp.pi / 4
        return mp.sqrt(2 / (mp.pi * x)) * (p * mp.sin(angle) + q * mp.cos(angle))

    return value


def log_normal_cdf(x):
    if x < -1e3:
        return -x * x / 2 - mp.log(-x * mp.sqrt(2 * mp.pi)) + mp.log1p(-1 / x**2 + 3 / x**4 - 15 / x**6 + 105 / x**8)
    if x > 1e3:
        return mp.mpf(0)
    return mp.log(mp.erfc(-x / mp.sqrt(2)) / 2) if x < 0 else mp.log1p(-mp.erfc(x / mp.sqrt(2)) / 2)


def inverse_normal_cdf(p):
    if p in (0, 1):
        return mp.inf if p else -mp.inf
    with mp.workprec(mp.prec + 40):
        start = mp.mpf(special.ndtri(torch.tensor(float(p), dtype=F64)).item())
        if not mp.isfinite(start):
            start = -mp.sqrt(-2 * mp.log(p))
        return newton(lambda x: log_normal_cdf(x) - mp.log(p), lambda x: density(x) / mp.ncdf(x), start)


def density(x):
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


def newton(function, slope, x):
    for _ in range(60):
        step = function(x) / slope(x)
        x -= step
        if abs(step) <= abs(x) * mp.eps * 2**20:
            break
    return x


def inverse_erf(y):
    if abs(y) == 1:
        return y * mp.inf
    if y == 0:
        return mp.mpf(0)
    with mp.workprec(mp.prec + 60):
        start = mp.mpf(torch.erfinv(torch.tensor(float(y), dtype=F64)).item())
        start = start if start and mp.isfinite(start) else y * mp.sqrt(mp.pi) / 2
        return newton(lambda x: mp.erf(x) - y, lambda x: 2 / mp.sqrt(mp.pi) * mp.exp(-x * x), start)


def scaled_erfc(x):
    return mp.exp(x * x) * mp.erfc(x) if x < 1e6 else (1 - 1 / (2 * x * x)) / (x * mp.sqrt(mp.pi))


def plain_erfc(x):
    return mp.mpf(0) if x > 1e4 else mp.erfc(x)


def softplus(x):
    return mp.log1p(mp.exp(x)) if x < 0 else x + mp.log1p(mp.exp(-x))


def log_add(x, y):
    top, low = max(x, y), min(x, y)
    return top + mp.log1p(mp.exp(low - top)) if top - low < 1e6 else top


def log_add_two(x, y):
    top, low = max(x, y), min(x, y)
    return top + mp.log1p(mp.power(2, low - top)) / mp.log(2) if top - low < 1e6 else top


def power(x, y):
    if x == 0:
        return mp.mpf(1) if y == 0 else mp.inf if y < 0 else mp.mpf(0)
    if x < 0 and y != mp.floor(y):
        return mp.nan
    return mp.power(x, y)


def times_log(log):
    return lambda x, y: mp.mpf(0) if x == 0 else x * log(y)


def log_or_infinity(x):
    return mp.log(x) if x > 0 else -mp.inf if x == 0 else mp.nan


def remainder_of_floor(x, y):
    return x - y * mp.floor(x / y) if y else mp.nan


def remainder_of_trunc(x, y):
    if not y:
        return mp.nan
    rest = abs(x) - abs(y) * mp.floor(abs(x) / abs(y))
    return -rest if x < 0 else rest


def mish(x):
    return x * mp.tanh(softplus(x)) if x > -1e6 else mp.mpf(0)


def incomplete(upper):
    def value(a, x):
        return mp.gammainc(a, x, mp.inf, regularized=True) if upper else mp.gammainc(a, 0, x, regularized=True)

    return value


def hurwitz(x, q):
    """Terms up to 60, and Euler and Maclaurin's sum of the rest: mpmath's own loses digits of small values."""
    count = 60
    end = q + count
    total = sum((q + k) ** -x for k in range(count)) + end ** (1 - x) / (x - 1) + end**-x / 2
    rising, power = x, end ** (-x - 1)
    for k in range(1, 30):
        total += mp.bernoulli(2 * k) / mp.factorial(2 * k) * rising * power
        rising *= (x + 2 * k - 1) * (x + 2 * k)
        power /= end * end
    return total


E_HUGE = (1e22, 1e300, 3e38)
TURNS = tuple(k * math.pi / 4 for k in (1, 2, 3, 4, 6, 8, 100, 12345))
LOG_RANGE = (0.0, INF, (0.5, 2.0, 10.0, math.sqrt(0.5), math.sqrt(2), 1e-310, 1e-40))
GROWTH = (-1e3, 1e3, (88.7, -87.3, -103.9, 709.7, -708.3, -745.1, 0.3465, 1.0397, 44.0))

FUNCTIONS: dict[str, Function] = {
    "exp": one(torch.exp, mp.exp, *GROWTH),
    "exp2": one(torch.exp2, lambda x: mp.power(2, x), -2e3, 2e3, (127.9, -126.0, -149.5, 1023.9, -1022.0, -1074.5)),
    "expm1": one(torch.expm1, mp.expm1, *GROWTH),
    "log": one(torch.log, log_or_infinity, *LOG_RANGE),
    "log2": one(torch.log2, lambda x: log_or_infinity(x) / mp.log(2), *LOG_RANGE),
    "log10": one(torch.log10, lambda x: log_or_infinity(x) / mp.log(10), *LOG_RANGE),
    "log1p": one(torch.log1p, lambda x: log_or_infinity(1 + x), -1.0, INF, (-0.29, 0.29, 1e20), 1300),
    "sin": one(torch.sin, mp.sin, points=(*TURNS, *E_HUGE), precision=1300),
    "cos": one(torch.cos, mp.cos, points=(*TURNS, *E_HUGE), precision=1300),
    "tan": one(torch.tan, mp.tan, points=(*TURNS, *E_HUGE), precision=1300),
    "asin": one(torch.asin, mp.asin, -1.0, 1.0, (0.5, 0.7071)),
    "acos": one(torch.acos, mp.acos, -1.0, 1.0, (0.5, 0.7071)),
    "atan": one(torch.atan, mp.atan, points=(0.66, 2.414, 0.4375, 1e8, 1e16)),
    "sinh": one(torch.sinh, mp.sinh, *GROWTH),
    "cosh": one(torch.cosh, mp.cosh, *GROWTH),
    "tanh": one(torch.tanh, mp.tanh, points=(0.17, 0.5, 9.0, 19.0, 20.0)),
    "asinh": one(torch.asinh, mp.asinh, points=(1e8, 0.5, 1e-4, 1e154, 1e19), precision=2300),
    "acosh": one(torch.acosh, mp.acosh, 1.0, INF, (1e8, 1.5, 2.0, 1e154, 1e19), precision=2300),
    "atanh": one(torch.atanh, lambda x: x * mp.inf if abs(x) == 1 else mp.atanh(x), -1.0, 1.0, (0.5, 0.25), 2300),
    "sqrt": one(torch.sqrt, mp.sqrt, 0.0),
    "rsqrt": one(torch.rsqrt, lambda x: 1 / mp.sqrt(x) if x else mp.inf, 0.0),
    "reciprocal": one(torch.reciprocal, lambda x: 1 / x if x else mp.inf, 0.0),
    "sigmoid": one(torch.sigmoid, lambda x: 1 / (1 + mp.exp(-x)), *GROWTH),
    "logit": one(torch.logit, lambda x: mp.log(x / (1 - x)) if x < 1 else mp.inf, 1e-300, 1.0, (0.5, 0.25, 0.75), 1300),
    "sinc": one(special.sinc, lambda x: mp.sinc(mp.pi * x), points=(0.5, 1.0, 2.0, 3.0, 100.0), precision=1300),
    "erf": one(torch.erf, mp.erf, points=(0.5, 0.84375, 1.25, 2.0, 3.0, 6.0)),
    "erfc": one(torch.erfc, plain_erfc, points=(0.5, 1.25, 2.0, 3.0, 8.0, 10.0, 26.5, 27.2), precision=400),
    "erfcx": one(special.erfcx, scaled_erfc, -26.0, INF, (0.5, 1.0, 8.0, 50.0, 1e8), 1300),
    "erfinv": one(torch.erfinv, inverse_erf, -1.0, 1.0, (0.5, 0.9, 0.99, 0.999999), 400),
    "ndtri": one(special.ndtri, inverse_normal_cdf, 0.0, 1.0, (0.5, 0.25, 0.75, 0.135, 0.86), 400),
    "log_ndtr": one(special.log_ndtr, log_normal_cdf, -1e150, INF, (-1.0, -1.4, -10.0, -30.0), 400),
    "entr": one(special.entr, lambda x: -x * mp.log(x) if x > 0 else mp.mpf(0), 0.0, INF, (0.5,)),
    "lgamma": one(torch.lgamma, log_gamma, 0.0, INF, (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 8.0, 13.0), 400),
    "lgamma of negative": one(
        torch.lgamma,
        log_gamma,
        -170.0,
        -1e-30,
        (-0.5, -1.0, -1.5, -2.4570247382208006, -2.7476826467274127, -3.1435808883499797),
        400,
        above(0.01),
    ),
    "digamma": one(torch.digamma, digamma, 0.0, INF, (1.4616321449683622, 0.5, 1.5, 2.0, 8.0, 10.0), 400),
    "digamma of negative": one(
        torch.digamma, digamma, -170.0, -1e-30, (-0.5040830082644554, -0.5, -1.0, -1.5), 400, above(0.01)
    ),
    "polygamma 1": one(
        lambda x: special.polygamma(1, x), lambda x: mp.psi(1, x) if x else mp.inf, 0.0, 1e100, (0.5, 1.0, 10.0), 400
    ),
    "polygamma 2": one(
        lambda x: special.polygamma(2, x), lambda x: mp.psi(2, x) if x else -mp.inf, 1e-100, 1e60, (0.5, 1.0, 10.0), 400
    ),
    "polygamma 5": one(lambda x: special.polygamma(5, x), lambda x: mp.psi(5, x), 1e-5, 1e5, (0.5, 1.0, 10.0), 400),
    "i0": one(torch.i0, lambda x: scaled_i(0)(x) * mp.exp(abs(x)), -720.0, 720.0, (7.75, 8.0, 713.9), 400),
    "i0e": one(special.i0e, scaled_i(0), points=(7.75, 8.0, 500.0), precision=400),
    "i1": one(special.i1, lambda x: scaled_i(1)(x) * mp.exp(abs(x)), -720.0, 720.0, (7.75, 8.0, 713.9), 400),
    "i1e": one(special.i1e, scaled_i(1), points=(7.75, 8.0, 500.0), precision=400),
    "k0": one(special.modified_bessel_k0, lambda x: scaled_k(0)(x) * mp.exp(-x), 0.0, 760.0, (1.0, 2.0), 400),
    "k1": one(special.modified_bessel_k1, lambda x: scaled_k(1)(x) * mp.exp(-x), 0.0, 760.0, (1.0, 2.0), 400),
    "k0e": one(special.scaled_modified_bessel_k0, scaled_k(0), 0.0, INF, (1.0, 2.0), 400),
    "k1e": one(special.scaled_modified_bessel_k1, scaled_k(1), 0.0, INF, (1.0, 2.0), 400),
    "bessel_j0": one(
        special.bessel_j0,
        bessel_j(0),
        -1e5,
        1e5,
        (2.404825557695773, 5.0, 8.0, 30.634606468431976),
        400,
        waves_height(0.0),
    ),
    "bessel_j1": one(special.bessel_j1, bessel_j(1), -1e5, 1e5, (3.8317059702075125, 5.0, 8.0), 400, waves_height(0.0)),
    "bessel_y0": one(special.bessel_y0, bessel_y(0), 0.0, 1e5, (0.8935769662791675, 5.0, 8.0), 400, waves_height(0.05)),
    "bessel_y1": one(special.bessel_y1, bessel_y(1), 0.0, 1e5, (2.197141326031017, 5.0, 8.0), 400, waves_height(0.05)),
    "spherical_bessel_j0": one(special.spherical_bessel_j0, mp.sinc, points=(0.5, *TURNS), precision=1300),
    "airy_ai": one(special.airy_ai, mp.airyai, -100.0, 103.0, (2.09, -2.09, -2.338107410459767), 400, airy_height),
    "gelu": one(
        torch.nn.functional.gelu,
        lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2 if x < 1e3 else x,
        -40.0,
        INF,
        (-1.0, 1.0),
        400,
        bound=SHORT_FORM,
    ),
    "silu": one(torch.nn.functional.silu, lambda x: x / (1 + mp.exp(-x)), -760.0, INF, (-1.0, 1.0)),
    "mish": one(torch.nn.functional.mish, mish, -760.0, INF, (-1.0, 1.0), 1300),
    "softplus": one(torch.nn.functional.softplus, lambda x: x if x > 20 else softplus(x), -760.0, INF, (20.0,), 1300),
    "logsigmoid": one(torch.nn.functional.logsigmoid, lambda x: -softplus(-x), -760.0, INF, (), 1300),
    "elu": one(torch.nn.functional.elu, lambda x: mp.expm1(x) if x < 0 else x, -760.0, INF),
    "deg2rad": one(torch.deg2rad, lambda x: x * mp.pi / 180),
    "rad2deg": one(torch.rad2deg, lambda x: x * 180 / mp.pi),
    "pow": two(torch.pow, power, (0.0, INF, (1.0, 2.0, 0.5)), (-700.0, 700.0, (2.0, 0.5)), 1300),
    "pow of negative": two(torch.pow, power, (-INF, 0.0, (-1.0,)), (-12.0, 12.0, (2.0, 3.0, -3.0)), 1300),
    "atan2": two(torch.atan2, mp.atan2, precision=2300),
    "hypot": two(torch.hypot, mp.hypot, precision=4500),
    "fmod": two(torch.fmod, remainder_of_trunc, precision=4500),
    "remainder": two(torch.remainder, remainder_of_floor, precision=4500),
    "logaddexp": two(torch.logaddexp, log_add, (-800.0, 800.0, ()), (-800.0, 800.0, ()), 1300, larger),
    "logaddexp2": two(torch.logaddexp2, log_add_two, (-800.0, 800.0, ()), (-800.0, 800.0, ()), 1300, larger),
    "xlogy": two(torch.xlogy, times_log(log_or_infinity), (-1e9, 1e9, ()), (0.0, INF, ())),
    "xlog1py": two(
        special.xlog1py, times_log(lambda y: log_or_infinity(1 + y)), (-1e9, 1e9, ()), (-1.0, INF, ()), 1300
    ),
    "zeta": two(special.zeta, hurwitz, (1.0001, 60.0, (1.5, 2.0)), (1e-3, 1e3, (1.0, 9.0)), bound=SUMMED),
    "igamma": two(torch.igamma, incomplete(False), (1e-3, 200.0, ()), (1e-3, 200.0, ()), 400, bound=LONG_SUMS),
    "igammac": two(torch.igammac, incomplete(True), (1e-3, 200.0, ()), (1e-3, 200.0, ()), 400, bound=LONG_SUMS),
}
