"""Airy's function: a polynomial near zero, one beside the decay to the right, two beside the waves to the left."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor

from .. import angles
from .. import elementary as e
from .. import maths as m
from ..fits import evaluated, exactly, fitted, number
from ..pairs import Pair
from ..pointwise import register_unary
from ..special import in_kind

aten = torch.ops.aten

# Where waves end and decay begins.
LEFT, RIGHT = -4.0, 2.0


def _decayed(mp, u):
    """Ai(x) * exp(z) * x**0.25 for z = 2/3 * x**1.5, in u = 1/z."""
    x = (mp.mpf(3) / 2 / u) ** (mp.mpf(2) / 3)
    return mp.airyai(x) * mp.exp(1 / u) * mp.sqrt(mp.sqrt(x))


def _wave(in_phase: bool):
    """Ai(-x) = (sin(a) * F - cos(a) * G) / (sqrt(pi) * x**0.25) with a = z + pi/4: F, or G * z, in 1 / (z*z)."""

    def value(mp, t):
        z = 1 / mp.sqrt(t)
        x = (mp.mpf(3) / 2 * z) ** (mp.mpf(2) / 3)
        root, angle = mp.sqrt(mp.pi * mp.sqrt(x)), z + mp.pi / 4
        a, b = mp.airyai(-x) * root, mp.airybi(-x) * root
        return a * mp.sin(angle) + b * mp.cos(angle) if in_phase else (b * mp.sin(angle) - a * mp.cos(angle)) * z

    return value


IN_PHASE, QUADRATURE = _wave(True), _wave(False)


# Airy itself, as a function of its own: `fitted` remembers functions.
def _near(mp, x):
    return mp.airyai(x)


def one_third(mp):
    return mp.mpf(1) / 3


def two_thirds(mp):
    return mp.mpf(2) / 3


# z there.
FIRST_WAVE, FIRST_DECAY = 2 / 3 * (-LEFT) ** 1.5, 2 / 3 * RIGHT**1.5


@in_kind
def airy_ai(x: Tensor, kind: type[Pair]) -> Tensor:
    size = m.absolute(x)
    far = ((size > RIGHT) & (size < 1e100)).where(size, RIGHT)
    root = kind.single(far).sqrt()
    z = number(exactly(two_thirds), x.dtype, kind) * root.times(far)
    inverse = 1.0 / z.high
    right = evaluated(2.0 * FIRST_DECAY * inverse - 1.0, fitted(_decayed, 0.0, 1 / FIRST_DECAY), kind) / root.sqrt()
    n, decay = e.exp_parts(-z, kind)
    square = m.minimum(2.0 * (FIRST_WAVE * inverse) * (FIRST_WAVE * inverse) - 1.0, m.constant(1.0, x.dtype))
    f, g = (evaluated(square, fitted(form, 0.0, 1 / FIRST_WAVE**2), kind, 1).high for form in (IN_PHASE, QUADRATURE))
    g = g * inverse
    # z's last digits turn the waves a little
    sine, cosine = angles.sin(z.high), angles.cos(z.high)
    sine, cosine = sine + cosine * z.low, cosine - sine * z.low
    wave = ((sine + cosine) * f - (cosine - sine) * g) * (math.sqrt(0.5 / math.pi) / root.high.sqrt())
    third = number(exactly(one_third), x.dtype, kind)
    inner = ((x > RIGHT) | (x < LEFT)).where(-1.0, x)
    at = third * kind.sum(inner, m.constant(1.0, x.dtype))
    middle = evaluated(at, fitted(_near, LEFT, RIGHT), kind, 24).rounded
    value = (x > RIGHT).where(e.grown(n, right * decay), (x < LEFT).where(wave, middle))
    value = (x > 1e3).where(0.0, value)
    return (size.eq(m.INF) | x.isnan()).where(m.NAN, value)


register_unary(aten.special_airy_ai.default, airy_ai)
