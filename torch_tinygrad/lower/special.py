"""Error functions and their inverses: one polynomial each near zero and far out, in pairs of floats where the last
digits need them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.lower import elementary as e
from torch_tinygrad.lower import maths as m
from torch_tinygrad.lower.fits import evaluated, exactly, fitted, number
from torch_tinygrad.lower.maths import constant, polynomial
from torch_tinygrad.lower.pairs import Pair, Plain
from torch_tinygrad.lower.pointwise import register_unary

aten = torch.ops.aten
ROOT_HALF = math.sqrt(0.5)
HALF_ROOT_PI = 0.5 * math.sqrt(math.pi)

# erf(x) = x * P(x*x) / Q(x*x) for |x| <= 1; erfc(x) = exp(-x*x) * P(x) / Q(x) for x in [1, 8) and x >= 8 (S. Moshier's
# Cephes): the short way, for networks in float32.
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
# From here on erf is 1 in float32.
ERF_ENDS = 6.0


def ratio(x: Tensor, table: tuple[list[float], list[float]]) -> Tensor:
    return polynomial(x, table[0]) / polynomial(x, table[1])


def in_kind(compute: Callable[[Tensor, type[Pair]], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function that computes with pairs of float64; one of float32 with float64 alone, where the device has it."""

    @functools.wraps(compute)
    def widened(x: Tensor) -> Tensor:
        if x.dtype == dtypes.float32 and m.widest_float() == dtypes.float64:
            return compute(x.cast(dtypes.float64), Plain).cast(dtypes.float32)
        return compute(x, Pair)

    return widened


def in_double(compute: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of single-precision numbers, computed with twice their digits where the device has those."""
    return in_kind(lambda x, kind: compute(x))


# ---- from 0 to infinity --------------------------------------------------------------------------------------------


def _over_root(mp, z):
    return mp.erf(mp.sqrt(z)) / mp.sqrt(z)


def _flattened(mp, t):
    """(1 + 2x) * exp(x*x) * erfc(x), for x = 3 * (1 + t) / (1 - t) from 0 to infinity as t goes from -1 to 1."""
    x = 3 * (1 + t) / (1 - t)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def erf_pair(x: Tensor, kind: type[Pair]) -> Pair:
    """For |x| <= 1."""
    return evaluated(2.0 * x * x - 1.0, fitted(_over_root, 0.0, 1.0), kind).times(x)


def erfcx_pair(x: Tensor, kind: type[Pair]) -> Pair:
    """exp(x*x) * erfc(x) for x >= 0."""
    far = x > 1e17
    near = far.where(1e17, x)
    flat = evaluated((near - 3.0) / (near + 3.0), fitted(_flattened, -1.0, 1.0), kind)
    value = flat / kind.sum(constant(1.0, x.dtype), 2.0 * near)
    return kind.single(0.5 / HALF_ROOT_PI / far.where(x, 1.0)).where(far, value)


def erfc_parts(x: Tensor, square: Pair, kind: type[Pair]) -> tuple[Tensor, Pair]:
    """n and m with erfc(x) = m * 2**n for x >= 0, whose square has digits of its own: far out they are the result's."""
    n, grown = e.exp_parts(-square, kind)
    return n, grown * erfcx_pair(x, kind)


# From here on erfc is 0.
ERFC_ENDS = 40.0


def square_of(x: Tensor, kind: type[Pair]) -> Pair:
    return kind.product(x, x)


def erfc_tail(x: Tensor, kind: type[Pair]) -> Tensor:
    bounded = (x > ERFC_ENDS).where(ERFC_ENDS, x)
    return e.grown(*erfc_parts(bounded, square_of(bounded, kind), kind))


def erf(x: Tensor) -> Tensor:
    """float32 in its own digits."""
    size = m.absolute(x)
    inner = (size < 1.0).where(x, 1.0)
    if x.dtype == dtypes.float64:
        centre, tail = erf_pair(inner, Pair).rounded, erfc_tail(size, Pair)
    else:
        centre = inner * ratio(inner * inner, ERF_CENTRE)
        bounded = (size > ERF_ENDS).where(ERF_ENDS, size)
        tail = e.exp(-bounded * bounded) * ratio((size < 1.0).where(1.0, bounded), ERFC_MIDDLE)
    return (size < 1.0).where(centre, m.copysign(1.0 - tail, x))


def one_less(value: Pair, kind: type[Pair]) -> Tensor:
    return (kind.single(constant(1.0, value.high.dtype)) - value).rounded


@in_kind
def erfc(x: Tensor, kind: type[Pair]) -> Tensor:
    size = m.absolute(x)
    tail = erfc_tail(size, kind)
    near = one_less(erf_pair((size < 0.5).where(x, 0.5), kind), kind)
    return (size < 0.5).where(near, (x < 0).where(2.0 - tail, tail))


@in_kind
def erfcx(x: Tensor, kind: type[Pair]) -> Tensor:
    size = m.absolute(x)
    bounded = (size > ERFC_ENDS).where(ERFC_ENDS, size)
    n, factor = e.exp_parts(square_of(bounded, kind), kind)
    value = erfcx_pair(size, kind).rounded
    negative = (kind.single(e.grown(n + 1.0, factor)) - kind.single(value)).rounded
    # no power of two: the difference is rounded once
    small = (factor.scaled(2.0) - erfcx_pair((size < 0.5).where(size, 0.5), kind)).rounded
    return (x < 0).where((size < 0.5).where(small, negative), value)


def normal_cdf(x: Tensor) -> Tensor:
    """The standard normal distribution function; float32 uses the short form 7.1.26 of Abramowitz and Stegun."""
    if x.dtype == dtypes.float64:
        size = m.absolute(x)
        bounded = (size > ERFC_ENDS).where(ERFC_ENDS, size)
        tail = 0.5 * e.grown(*erfc_parts(bounded * ROOT_HALF, square_of(bounded, Pair).scaled(0.5), Pair))
        return (x < 0).where(tail, 1.0 - tail)
    z = m.absolute(x) * ROOT_HALF
    t = (1.0 + 0.3275911 * z).reciprocal()
    series = t * polynomial(t, [1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592])
    tail = 0.5 * series * e.exp(-z * z)
    return (x < 0).where(tail, 1.0 - tail)


# ---- inverses ------------------------------------------------------------------------------------------------------

# Giles' approximation of erfinv(x) / x in w = -log(1 - x*x), for w < 5 (in w - 2.5) and above (in sqrt(w) - 3).
ERFINV_CENTRE = [2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                 -0.00417768164, 0.246640727, 1.50140941]  # fmt: skip
ERFINV_TAIL = [-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
               0.00943887047, 1.00167406, 2.83297682]  # fmt: skip


def inverse_erfc(complement: Tensor, kind: type[Pair]) -> Pair:
    """The x >= 0 with erfc(x) = complement, for complement in (0, 1]. Newton's method refines it, in the end with all
    digits; far out, where the approximation ends, it finds log(erfc(x)) = log(complement)."""
    w = -e.log(complement * (2.0 - complement))
    root = w.sqrt() - 3.0
    x = (w < 5.0).where(polynomial(w - 2.5, ERFINV_CENTRE), polynomial(root, ERFINV_TAIL)) * (1.0 - complement)
    is_far = complement < 1e-6
    near = is_far.where(1.0, x)
    slope = HALF_ROOT_PI * e.exp(near * near)
    near = near + (erfc_tail(near, Plain) - complement) * slope
    n, part = erfc_parts(near, square_of(near, kind), kind)
    power = m.power_of_two(n.cast(dtypes.int32), x.dtype)
    missed = kind.of(part.high * power, part.low * power) - kind.single(complement)
    near_pair = kind.single(near) + kind.single(missed.rounded * HALF_ROOT_PI * e.exp(near * near))
    level = e.log_pair(is_far.where(complement, 0.5), kind)
    far = (-level.high).sqrt()
    for turn in range(4):
        last = kind if turn == 3 else Plain
        scaled = erfcx_pair(far, Plain).high
        gap = (last.single(e.log(scaled)) - last.product(far, far) - last.of(level.high, level.low)).rounded
        # the derivative of log(erfc) is -1 / (scaled * HALF_ROOT_PI)
        step = gap * scaled * HALF_ROOT_PI
        far_pair = kind.single(far) + kind.single(step)
        far = far_pair.rounded
    return far_pair.where(is_far, near_pair)


def inverse_erf_centre(x: Tensor, kind: type[Pair]) -> Pair:
    """The inverse for x in [0, 0.5], to all digits of small ones, too."""
    found = polynomial(-e.log1p(-x * x) - 2.5, ERFINV_CENTRE) * x
    missed = (erf_pair(found, Plain) - Plain(x)).high
    found = found - missed * HALF_ROOT_PI * e.exp(found * found)
    missed = (erf_pair(found, kind) - kind.single(x)).rounded
    return kind.single(found) - kind.single(missed * HALF_ROOT_PI * e.exp(found * found))


@in_kind
def erfinv(x: Tensor, kind: type[Pair]) -> Tensor:
    size = m.absolute(x)
    is_central = size < 0.5
    inside = (size < 1.0).where(size, 0.5)
    outer = inverse_erfc(1.0 - is_central.where(0.5, inside), kind).rounded
    # a power of two moves subnormal numbers to where rests are numbers, too
    value = is_central.where(inverse_erf_centre(is_central.where(size, 0.5), kind).rounded, outer)
    value = (size < 1e-280).where(size * HALF_ROOT_PI, value) if x.dtype == dtypes.float64 else value
    return (size < 1.0).where(m.copysign(value, x), size.eq(1).where(m.copysign(constant(m.INF, x.dtype), x), m.NAN))


def root_two(mp):
    return mp.sqrt(2)


@in_kind
def ndtri(p: Tensor, kind: type[Pair]) -> Tensor:
    inside = (p > 0) & (p < 1)
    p = inside.where(p, p.eq(0).where(-1.0, p.eq(1).where(2.0, m.NAN)))
    lower, from_middle = p < 0.5, 2.0 * p - 1.0
    size = m.absolute(from_middle)
    is_central = size < 0.5
    given = inside.where(lower.where(p, 1.0 - p), 0.25)
    outer = inverse_erfc(2.0 * is_central.where(0.25, given), kind)
    central = inverse_erf_centre(is_central.where(size, 0.5), kind)
    value = (central.where(is_central, outer) * number(exactly(root_two), p.dtype, kind)).rounded
    value = inside.where(value, p.isnan().where(m.NAN, m.INF))
    return lower.where(-value, value)


@in_kind
def log_ndtr(x: Tensor, kind: type[Pair]) -> Tensor:
    """The square is that of x before it is divided by a root of two."""
    size, below = m.absolute(x), x < 0
    bounded = below.where((size > 1e150).where(1e150, size), (size > ERFC_ENDS).where(ERFC_ENDS, size))
    z, square = bounded * ROOT_HALF, kind.product(bounded, bounded).scaled(0.5)
    scaled = erfcx_pair(z, Plain)
    left = (kind.single(e.log(0.5 * scaled.high)) - square).rounded
    inner = kind.single(constant(0.0, x.dtype)).where(below, square)
    right = e.log1p(-0.5 * e.grown(*erfc_parts(z, inner, kind)))
    return below.where((size > 1e150).where(-0.5 * size * size, left), right)


UNARY = {
    aten.erf: erf,
    aten.erfc: erfc,
    aten.erfinv: erfinv,
    aten.special_erfcx: erfcx,
    aten.special_ndtri: ndtri,
    aten.special_log_ndtr: log_ndtr,
    aten.special_entr: lambda x: (x > 0).where(-x * e.log(x), x.eq(0).where(0.0, x.isnan().where(x, -m.INF))),
}
for _op, _compute in UNARY.items():
    register_unary(_op.default, _compute)
