"""Special functions from closed forms: error functions (rational forms of S. Moshier's Cephes), gamma functions
(recurrence and Stirling's series) and modified Bessel functions (Chebyshev series of PyTorch's own float64 values)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.lower import angles
from torch_tinygrad.lower import elementary as e
from torch_tinygrad.lower import maths as m
from torch_tinygrad.lower.maths import constant, operand, polynomial, widen
from torch_tinygrad.lower.pairs import exact_product
from torch_tinygrad.lower.pointwise import register_unary
from torch_tinygrad.lower.registry import lowers

aten = torch.ops.aten
ROOT_HALF = math.sqrt(0.5)

# erf(x) = x * P(x*x) / Q(x*x) for |x| <= 1; erfc(x) = exp(-x*x) * P(x) / Q(x) for x in [1, 8) and x >= 8.
ERF_CENTRE = (
    [9.60497373987051638749, 9.00260197203842689217e1, 2.23200534594684319226e3, 7.00332514112805075473e3,
     5.55923013010394962768e4],
    [1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3, 2.26290000613890934246e4,
     4.92673942608635921086e4],
)  # fmt: skip
ERFC_MIDDLE = (
    [2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687, 4.86371970985681366614e1,
     1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
     5.57535335369399327526e2],
    [1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
     1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2],
)  # fmt: skip
ERFC_FAR = (
    [5.64189583547755073984e-1, 1.27536670759978104416, 5.01905042251180477414, 6.16021097993053585195,
     7.40974269950448939160, 2.97886665372100240670],
    [1.0, 2.26052863220117276590, 9.39603524938001434673, 1.20489539808096656605e1, 1.70814450747565897222e1,
     9.60896809063285878198, 3.36907645100081516050],
)  # fmt: skip

# Further out, where the rational form's last digits are not 1 / sqrt(pi)'s: exp(x*x) * erfc(x) * x in 1 / (x*x).
ERFC_SERIES_FROM = 50.0
ERFC_SERIES = [c / math.sqrt(math.pi) for c in (105 / 16, -15 / 8, 3 / 4, -1 / 2, 1.0)]


def ratio(x: Tensor, table: tuple[list[float], list[float]]) -> Tensor:
    return polynomial(x, table[0]) / polynomial(x, table[1])


def erf_centre(x: Tensor) -> Tensor:
    return x * ratio(x * x, ERF_CENTRE)


def erfc_scaled(x: Tensor) -> Tensor:
    """exp(x*x) * erfc(x) for x >= 1."""
    near, far = (x < 8.0).where(x, 8.0), (x > ERFC_SERIES_FROM).where(ERFC_SERIES_FROM, x)
    inverse = (x > ERFC_SERIES_FROM).where(x, ERFC_SERIES_FROM).reciprocal()
    tail = inverse * polynomial(inverse * inverse, ERFC_SERIES)
    return (x < 8.0).where(ratio(near, ERFC_MIDDLE), (x > ERFC_SERIES_FROM).where(tail, ratio(far, ERFC_FAR)))


def erf(x: Tensor) -> Tensor:
    size = m.absolute(x)
    outer = 1.0 - e.exp(-size * size) * erfc_scaled((size < 1.0).where(1.0, size))
    return (size < 1.0).where(erf_centre(x), m.copysign(outer, x))


# From here on erfc is 0.
ERFC_ENDS = 40.0


def erfc(x: Tensor) -> Tensor:
    """The square is taken with all its digits: far out its last ones are many of the result's."""
    size = m.absolute(x)
    bounded = (size > ERFC_ENDS).where(ERFC_ENDS, size)
    tail = e.exp_of_pair(-exact_product(bounded, bounded)) * erfc_scaled((size < 1.0).where(1.0, size))
    return (size < 1.0).where(1.0 - erf_centre(x), (x < 0).where(2.0 - tail, tail))


def erfcx(x: Tensor) -> Tensor:
    size = m.absolute(x)
    grown, tail = e.exp(x * x), erfc_scaled((size < 1.0).where(1.0, size))
    return (size < 1.0).where(grown * (1.0 - erf_centre(x)), (x < 0).where(2.0 * grown - tail, tail))


def normal_cdf(x: Tensor) -> Tensor:
    """The standard normal distribution function; float32 uses the short form 7.1.26 of Abramowitz and Stegun."""
    if x.dtype == dtypes.float64:
        return 0.5 * erfc(x * -ROOT_HALF)
    z = m.absolute(x) * ROOT_HALF
    t = (1.0 + 0.3275911 * z).reciprocal()
    series = t * polynomial(t, [1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592])
    tail = 0.5 * series * e.exp(-z * z)
    return (x < 0).where(tail, 1.0 - tail)


# Giles' approximation of erfinv(x) / x in w = -log(1 - x*x), for w < 5 (in w - 2.5) and above (in sqrt(w) - 3).
ERFINV_CENTRE = [2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                 -0.00417768164, 0.246640727, 1.50140941]  # fmt: skip
ERFINV_TAIL = [-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
               0.00943887047, 1.00167406, 2.83297682]  # fmt: skip


def inverse_erfc(complement: Tensor) -> Tensor:
    """The x >= 0 with erfc(x) = complement, for complement in [0, 1]. Newton's method refines it for float64, and far
    out, where the approximation ends, finds log(erfc(x)) = log(complement)."""
    w = -e.log(complement * (2.0 - complement))
    root = w.sqrt() - 3.0
    x = (w < 5.0).where(polynomial(w - 2.5, ERFINV_CENTRE), polynomial(root, ERFINV_TAIL)) * (1.0 - complement)
    if x.dtype == dtypes.float64:
        for _ in range(2):
            x = x + (erfc(x) - complement) * (0.5 * math.sqrt(math.pi)) * e.exp(x * x)
    level = -e.log(complement)
    far = (level + e.log(erfc_scaled(level.sqrt().maximum(1.0)))).maximum(1.0).sqrt()
    for _ in range(4 if x.dtype == dtypes.float64 else 2):
        scaled = erfc_scaled(far)
        far = (far + (e.log(scaled) - far * far + level) * scaled * (0.5 * math.sqrt(math.pi))).maximum(1.0)
    return complement.eq(0).where(m.INF, (complement < 1e-6).where(far, x))


def inverse_erf_centre(x: Tensor) -> Tensor:
    """The inverse for x in [0, 0.5], to all digits of small ones, too."""
    found = polynomial(-e.log1p(-x * x) - 2.5, ERFINV_CENTRE) * x
    for _ in range(2 if x.dtype == dtypes.float64 else 0):
        found = found - (erf_centre(found) - x) * (0.5 * math.sqrt(math.pi)) * e.exp(found * found)
    return found


def erfinv(x: Tensor) -> Tensor:
    size = m.absolute(x)
    is_central = size < 0.5
    outer = inverse_erfc(1.0 - is_central.where(0.5, size))
    return m.copysign(is_central.where(inverse_erf_centre(is_central.where(size, 0.5)), outer), x)


def ndtri(p: Tensor) -> Tensor:
    lower, from_middle = p < 0.5, 2.0 * p - 1.0
    size = m.absolute(from_middle)
    is_central = size < 0.5
    outer = inverse_erfc(2.0 * is_central.where(0.25, lower.where(p, 1.0 - p)))
    value = is_central.where(inverse_erf_centre(is_central.where(size, 0.5)), outer) * math.sqrt(2)
    return lower.where(-value, value)


def log_ndtr(x: Tensor) -> Tensor:
    z = x * ROOT_HALF
    left = e.log(0.5 * erfcx((x < -1.0).where(-z, 1.0))) - z * z
    return (x < -1.0).where(left, e.log1p(-0.5 * erfc(z)))


SHIFT = 7  # the recurrence lifts arguments this far, where Stirling's series has converged
STIRLING = [-3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12]
DIGAMMA = [3617 / 8160, -1 / 12, 691 / 32760, -1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12]
# lgamma(2 + z) = z * P(z) for |z| <= 1/2: Taylor's series, whose coefficients are values of the zeta function.
EULER = 0.57721566490153286061
ABOUT_TWO = [
    *(
        (-1) ** k / k * torch.special.zeta(torch.tensor(float(k), dtype=torch.float64), 2.0).item()
        for k in range(28, 1, -1)
    ),
    1.0 - EULER,
]


def fold_whole(x: Tensor) -> Tensor:
    """x less the nearest even integer, in [-1, 1]: sin(pi*x) has this period."""
    return x - 2.0 * m.round_even(x * 0.5)


def lgamma_positive(x: Tensor) -> Tensor:
    """From lgamma(2 + z), z in [-1/2, 1/2], by whole steps up or down; from 8 on by Stirling's series."""
    steps = m.floor(x - 1.5)
    product = functools.reduce(
        lambda p, k: p * (steps < float(k)).where(1.0, x - float(k)), range(1, SHIFT), steps * 0.0 + 1.0
    )
    below, half = x < 1.5, x < 0.5
    z = half.where(x, below.where(x - 1.0, x - steps - 2.0))
    logarithm = e.log(half.where(x * (x + 1.0), below.where(x, product)))
    near = z * polynomial(z, ABOUT_TWO) + below.where(-logarithm, logarithm)
    inverse = x.reciprocal()
    series = inverse * polynomial(inverse * inverse, STIRLING)
    return (x < 8.0).where(near, (x - 0.5) * e.log(x) - x + 0.5 * math.log(2 * math.pi) + series)


def in_double(compute: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of single-precision numbers, computed with twice their digits where the device has those."""

    @functools.wraps(compute)
    def widened(x: Tensor) -> Tensor:
        if x.dtype == dtypes.float32 and m.widest_float() == dtypes.float64:
            return compute(x.cast(dtypes.float64)).cast(dtypes.float32)
        return compute(x)

    return widened


@in_double
def lgamma(x: Tensor) -> Tensor:
    reflected = x < 0
    value = lgamma_positive(reflected.where(1.0 - x, x))
    value = reflected.where(e.log(math.pi / m.absolute(m.sin_pi(fold_whole(x)))) - value, value)
    pole = m.less_equal(x, constant(0.0, x.dtype)) & m.floor(x).eq(x)
    return (pole | m.absolute(x).eq(m.INF)).where(m.INF, value)


def digamma_positive(x: Tensor) -> Tensor:
    low = x < 8.0
    rungs = functools.reduce(lambda total, k: total + (x + float(k)).reciprocal(), range(1, SHIFT), x.reciprocal())
    z = low.where(x + float(SHIFT), x)
    inverse = z.reciprocal()
    square = inverse * inverse
    value = e.log(z) - 0.5 * inverse + square * polynomial(square, DIGAMMA)
    value = low.where(value - rungs, value)
    return x.eq(m.INF).where(m.INF, value)


def cot_pi(x: Tensor) -> Tensor:
    part = x - m.round_even(x)
    return m.sin_pi(part + 0.5) / m.sin_pi(part)


@in_double
def digamma(x: Tensor) -> Tensor:
    reflected = x < 0
    value = digamma_positive(reflected.where(1.0 - x, x))
    value = reflected.where(value - math.pi * cot_pi(x), value)
    value = (reflected & m.floor(x).eq(x)).where(m.NAN, value)
    return x.eq(0).where(m.copysign(constant(m.INF, x.dtype), -x), value)


BERNOULLI = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66]


def polygamma_positive(n: int, x: Tensor) -> Tensor:
    """(-1)**(n+1) * the n-th derivative of digamma, by recurrence and Euler-Maclaurin's series."""
    shift = 10 + n
    rungs = functools.reduce(
        lambda total, k: total + inverse_power(x + float(k), n + 1), range(1, shift), inverse_power(x, n + 1)
    )
    z = x + float(shift)
    tail = math.factorial(n - 1) * inverse_power(z, n) + 0.5 * math.factorial(n) * inverse_power(z, n + 1)
    for k, bernoulli in enumerate(BERNOULLI, 1):
        scale = bernoulli * math.factorial(2 * k + n - 1) / math.factorial(2 * k)
        tail = tail + scale * inverse_power(z, n + 2 * k)
    return math.factorial(n) * rungs + tail


def inverse_power(x: Tensor, n: int) -> Tensor:
    inverse = x.reciprocal()
    return functools.reduce(lambda total, _: total * inverse, range(n - 1), inverse)


def cot_derivative(n: int) -> list[float]:
    """The n-th derivative of cot as a polynomial in cot, highest power first."""
    ascending = [0.0, 1.0]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(ascending)][1:]
        ascending = [-(a + b) for a, b in zip(slope + [0.0, 0.0], [0.0, 0.0] + slope, strict=True)]
    return ascending[::-1]


def trigamma(x: Tensor) -> Tensor:
    """With the CPU's reflection, which rounds pi * x before the sine."""
    reflected = x < 0.5
    value = polygamma_positive(1, reflected.where(1.0 - x, x))
    sine = angles.sin(constant(math.pi, x.dtype) * x)
    return reflected.where(math.pi**2 / (sine * sine) - value, value)


@lowers(aten.polygamma.default)
def polygamma(n, x, *, meta):
    x = operand(x, widen(meta[0].tiny))
    if n == 0:
        return digamma(x)
    if n == 1:
        return trigamma(x)
    reflected = x < 0
    value = polygamma_positive(n, reflected.where(1.0 - x, x)) * (-1) ** (n + 1)
    mirrored = (-1) ** n * value - math.pi ** (n + 1) * polynomial(cot_pi(x), cot_derivative(n))
    return reflected.where(mirrored, value)


@functools.cache
def chebyshev(function: Callable, low: float, high: float, count: int = 30) -> list[float]:
    """Coefficients of a float64 function's Chebyshev series on [low, high], without those too small to matter."""
    step = math.pi / (2 * count)
    odd = (2 * torch.arange(count) + 1).double()
    turns = (torch.arange(count).unsqueeze(1) * odd) % (4 * count)  # angles of many turns would be rounded
    cosines = torch.cos(turns * step)
    values = function((torch.cos(odd * step) + 1) * ((high - low) / 2) + low)
    coefficients = (cosines * values).sum(1) * (2 / count)
    coefficients[0] /= 2
    largest = coefficients.abs().max()
    return coefficients[: int((coefficients.abs() > largest * 1e-16).nonzero().max()) + 1].tolist()


def clenshaw(x: Tensor, coefficients: list[float]) -> Tensor:
    """The Chebyshev series at x in [-1, 1]."""
    if x.dtype == dtypes.float32:
        coefficients = [c for c in coefficients if abs(c) > 1e-9 * abs(coefficients[0])]
    current, previous = constant(0.0, x.dtype), constant(0.0, x.dtype)
    for coefficient in coefficients[:0:-1]:
        current, previous = 2.0 * x * current - previous + coefficient, current
    return x * current - previous + coefficients[0]


def bessel_scaled(x: Tensor, order: int) -> Tensor:
    """An exponentially scaled modified Bessel function at |x|: a series in x below 8, for x**order times it, in 1/x
    above."""
    function, size = SCALED_I[order], m.absolute(x)
    near, far = (size < 8.0).where(size, 8.0), (size < 8.0).where(8.0, size)
    low = clenshaw(near * 0.25 - 1.0, chebyshev(_near_form(order), 0.0, 8.0))
    high = chebyshev(_far_form(function), 0.0, 0.125)
    return (size < 8.0).where(low * near if order else low, clenshaw(16.0 / far - 1.0, high) / far.sqrt())


SCALED_I = (torch.special.i0e, torch.special.i1e)


@functools.cache
def _near_form(order: int) -> Callable:
    return lambda x: SCALED_I[order](x) / x**order


@functools.cache
def _far_form(function: Callable) -> Callable:
    def scaled(inverse: torch.Tensor) -> torch.Tensor:
        x = 1 / inverse
        return function(x) * x.sqrt()

    return scaled


def i0e(x: Tensor) -> Tensor:
    return bessel_scaled(x, 0)


def i1e(x: Tensor) -> Tensor:
    return m.copysign(bessel_scaled(x, 1), x)


def i0(x: Tensor) -> Tensor:
    return i0e(x) * e.exp(m.absolute(x))


def i1(x: Tensor) -> Tensor:
    return i1e(x) * e.exp(m.absolute(x))


UNARY = {
    aten.erf: erf,
    aten.erfc: in_double(erfc),
    aten.erfinv: in_double(erfinv),
    aten.special_erfcx: in_double(erfcx),
    aten.special_ndtri: in_double(ndtri),
    aten.special_log_ndtr: in_double(log_ndtr),
    aten.lgamma: lgamma,
    aten.digamma: digamma,
    aten.special_i0e: in_double(i0e),
    aten.special_i1e: in_double(i1e),
    aten.i0: in_double(i0),
    aten.special_i1: in_double(i1),
    aten.special_modified_bessel_i0: in_double(i0),
    aten.special_modified_bessel_i1: in_double(i1),
    aten.special_entr: lambda x: (x > 0).where(-x * e.log(x), x.eq(0).where(0.0, x.isnan().where(x, -m.INF))),
}
for _op, _compute in UNARY.items():
    register_unary(_op.default, _compute)


@lowers(aten.kaiser_window.default, aten.kaiser_window.periodic, aten.kaiser_window.beta)
def kaiser_window(length, periodic=True, beta=12.0, *, meta):
    if length <= 1:
        return m.constant(1, meta[0].tiny, meta[0].shape)
    half = (length if periodic else length - 1) / 2
    place = m.index_range(length).cast(m.widen(meta[0].tiny)) / half - 1.0
    height = (1.0 - place * place).maximum(0.0).sqrt() * beta
    return i0e(height) * e.exp(height - beta) / torch.special.i0e(torch.tensor(beta, dtype=torch.float64)).item()
