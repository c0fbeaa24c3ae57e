"""Random operators from counter-based bits: a value is a function of the generator's seed, its offset and the element's
index, so that random tensors fuse like any other expression and replay with new numbers.

Every random operator advances the generator's offset by 4 * numel of its output, rounded up to 4 (randperm and
multinomial: of their input), and a lowering uses at most that many counters; what needs more takes a `branch`."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

from torch_tinygrad.lower import elementary as e
from torch_tinygrad.lower import maths as m
from torch_tinygrad.lower.maths import operand, widen
from torch_tinygrad.lower.reduce import extreme_dim
from torch_tinygrad.lower.registry import LOWERINGS, Meta, lowers
from torch_tinygrad.lower.scan import running_sum

aten = torch.ops.aten


def needed(numel: int) -> int:
    """How far an operator of so many elements advances its generator's offset."""
    return (4 * numel + 3) // 4 * 4


class Random:
    """Threefry keyed by `seed`, with counters from `offset` on. Both are 0-dim int64 tensors, inputs of the program."""

    def __init__(self, seed: Tensor, offset: Tensor):
        self.key, self.offset, self.used = seed.cast(dtypes.uint64), offset.cast(dtypes.uint64), 0

    def words(self, count: int) -> Tensor:
        """Fresh uint64 words, one counter each."""
        # A cast would let tinygrad merge index arithmetic with uint64 values, for which it falls back to floats.
        index = m.index_range(count, dtypes.int32 if count < 2**31 else dtypes.int64).cast(dtypes.int64)
        counters = index.bitcast(dtypes.uint64) + (self.offset + self.used)
        self.used += count
        return counters.threefry(self.key)

    def bits(self, count: int) -> Tensor:
        """Fresh uint32 bits."""
        return self.words(count).cast(dtypes.uint32)

    def pair(self, count: int) -> tuple[Tensor, Tensor]:
        """Two independent streams of uint32 bits from one counter each."""
        words = self.words(count)
        return words.cast(dtypes.uint32), (words >> 32).cast(dtypes.uint32)

    def branch(self) -> Random:
        """An independent stream with counters of its own, for operators that need more than the bound."""
        key = (self.offset + self.used).threefry(self.key)
        self.used += 1
        return Random(key, m.constant(0, dtypes.int64))


def count_of(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def fraction(bits: Tensor, digits: int, dtype: DType = dtypes.float32) -> Tensor:
    """Bits as k / 2**digits in [0, 1), exact in `dtype`."""
    return (bits >> (bits.dtype.bitsize - digits)).cast(dtype) * 2.0**-digits


def unit(rng: Random, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Uniform in [0, 1), with as many digits as the dtype holds, so that rounding never reaches 1."""
    count = count_of(shape)
    if dtype == dtypes.float64:
        return fraction(rng.words(count), 53, dtypes.float64).reshape(shape)
    digits = {dtypes.float16: 11, dtypes.bfloat16: 8}.get(dtype, 24)
    return fraction(rng.bits(count), digits).reshape(shape)


def open_unit(rng: Random, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Uniform in the open interval (0, 1): midpoints of 2**23 (float64: 2**52) cells."""
    count = count_of(shape)
    if dtype == dtypes.float64:
        return (fraction(rng.words(count), 52, dtypes.float64) + 2.0**-53).reshape(shape)
    return (fraction(rng.bits(count), 23) + 2.0**-24).reshape(shape)


def gaussian(rng: Random, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Standard normal numbers by Box and Muller."""
    if dtype == dtypes.float64:
        radius, angle = open_unit(rng, shape, dtype), unit(rng, shape, dtype)
    else:
        first, second = (bits.reshape(shape) for bits in rng.pair(count_of(shape)))
        radius, angle = fraction(first, 23) + 2.0**-24, fraction(second, 24)
    return (-2.0 * e.log(radius)).sqrt() * m.sin_pi(angle * 2.0 - 1.0)


def integers(rng: Random, shape: tuple[int, ...], low: int, high: int) -> Tensor:
    """Uniform int64 in [low, high)."""
    count, span = count_of(shape), high - low
    if span <= 2**20:
        drawn = (rng.bits(count).cast(dtypes.uint64) * span) >> 32
    elif span == 2**64:
        drawn = rng.words(count)
    else:
        drawn = rng.words(count) % m.constant(span, dtypes.uint64)
    return drawn.cast(dtypes.int64).reshape(shape) + low


@lowers(aten.uniform.default, lifts=("from", "to"))
def uniform(x, low=0.0, high=1.0, *, meta, rng):
    """What would round up to the bound that is left out is the other bound, whose share is the smaller for rounding."""
    result, dtype = meta[0].tiny, widen(meta[0].tiny)
    low, high = operand(low, dtype), operand(high, dtype)
    drawn = low + unit(rng, meta[0].shape, result) * (high - low)
    return drawn.cast(result).cast(dtype).eq(high.cast(result).cast(dtype)).where(low, drawn)


@lowers(aten.rand.default, aten.rand.generator, aten.rand_like.default, aten.rand_like.generator)
def rand(size, *, meta, rng):
    return unit(rng, meta[0].shape, meta[0].tiny)


@lowers(aten.randn.default, aten.randn.generator, aten.randn_like.default, aten.randn_like.generator)
def randn(size, *, meta, rng):
    return gaussian(rng, meta[0].shape, meta[0].tiny)


def normal(mean, deviation, result: Meta, rng: Random) -> Tensor:
    dtype = widen(result.tiny)
    return operand(mean, dtype) + operand(deviation, dtype) * gaussian(rng, result.shape, result.tiny)


@lowers(aten.normal_functional.default, lifts=("mean", "std"))
def normal_like(x, mean=0.0, std=1.0, *, meta, rng):
    return normal(mean, std, meta[0], rng)


@lowers(
    aten.normal.Tensor_float,
    aten.normal.float_Tensor,
    aten.normal.Tensor_Tensor,
    aten.normal.float_float,
    lifts=("mean", "std"),
)
def normal_of(mean, std=1.0, size=None, *, meta, rng):
    return normal(mean, std, meta[0], rng)


@lowers(aten.log_normal.default, lifts=("mean", "std"))
def log_normal(x, mean=1.0, std=2.0, *, meta, rng):
    return e.exp(normal(mean, std, meta[0], rng))


@lowers(aten.exponential.default, lifts=("lambd",))
def exponential(x, rate=1.0, *, meta, rng):
    return -e.log(open_unit(rng, meta[0].shape, meta[0].tiny)) / operand(rate, widen(meta[0].tiny))


@lowers(aten.geometric.default, lifts=("p",))
def geometric(x, p, *, meta, rng):
    dtype = dtypes.float64 if meta[0].dtype == torch.float64 else dtypes.float32
    trials = e.log(open_unit(rng, meta[0].shape, dtype)) / e.log1p(-operand(p, dtype))
    return m.maximum(-m.floor(-trials), m.constant(1.0, dtype))


@lowers(aten.cauchy.default, lifts=("median", "sigma"))
def cauchy(x, median=0.0, sigma=1.0, *, meta, rng):
    dtype = widen(meta[0].tiny)
    turn = open_unit(rng, meta[0].shape, meta[0].tiny) - 0.5
    return operand(median, dtype) + operand(sigma, dtype) * (m.sin_pi(turn) / m.sin_pi(turn + 0.5))


@lowers(aten.bernoulli.default)
def bernoulli(p, *, meta, rng):
    return chosen(p, meta[0], rng)


@lowers(aten.bernoulli.p, aten.bernoulli.Tensor, lifts=("p",))
def bernoulli_like(x, p=0.5, *, meta, rng):
    return chosen(p, meta[0], rng)


def chosen(p, result: Meta, rng: Random) -> Tensor:
    dtype = dtypes.float64 if isinstance(p, Tensor) and p.dtype == dtypes.float64 and p.ndim else dtypes.float32
    return (unit(rng, result.shape, dtype) < operand(p, dtype)).cast(result.tiny)


@lowers(aten.randint.default, aten.randint.generator)
def randint(high, size, *, meta, rng):
    return integers(rng, meta[0].shape, 0, high)


@lowers(aten.randint.low, aten.randint.low_generator)
def randint_low(low, high, size, *, meta, rng):
    return integers(rng, meta[0].shape, low, high)


@lowers(aten.randint_like.default, aten.randint_like.generator)
def randint_like(x, high, *, meta, rng):
    return integers(rng, meta[0].shape, 0, high)


@lowers(aten.randint_like.low_dtype, aten.randint_like.low_generator_dtype)
def randint_like_low(x, low, high, *, meta, rng):
    return integers(rng, meta[0].shape, low, high)


@lowers(aten.randint_like.Tensor, aten.randint_like.Tensor_generator)
def randint_like_tensor(x, high, *, meta, rng):
    span = operand(high, dtypes.uint64)
    return (rng.words(count_of(meta[0].shape)).reshape(meta[0].shape) % span).cast(dtypes.int64)


def every_value(dtype: torch.dtype) -> int:
    """One more than the largest number `random_` draws without bounds: integers a float holds exactly count as its."""
    digits = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
    return 2 ** digits[dtype] + 1 if dtype in digits else 2 if dtype == torch.bool else torch.iinfo(dtype).max + 1


@lowers(aten.random.default)
def random(x, *, meta, rng):
    return integers(rng, meta[0].shape, 0, every_value(meta[0].dtype))


@lowers(aten.random.to)
def random_to(x, high, *, meta, rng):
    return integers(rng, meta[0].shape, 0, high)


@lowers(getattr(aten.random, "from"))
def random_from(x, low, high=None, *, meta, rng):
    return integers(rng, meta[0].shape, low, every_value(meta[0].dtype) if high is None else high)


@lowers(aten.native_dropout.default)
def native_dropout(x, p, train=True, *, meta, rng):
    if train is False or p == 0:
        return x, m.constant(True, dtypes.bool, x.shape)
    dtype = widen(x.dtype)
    if p == 1:
        return operand(x, dtype) * 0.0, m.constant(False, dtypes.bool, x.shape)
    # materialised: both results need it, and drawing costs more than reading a byte
    kept = (unit(rng, x.shape, dtypes.float32) < p).logical_not().contiguous()
    return operand(x, dtype) * kept.cast(dtype) * (1.0 / (1.0 - p)), kept


@lowers(aten.native_dropout_backward.default, fuses=True)
def native_dropout_backward(gradient, mask, scale):
    dtype = widen(gradient.dtype)
    return operand(gradient, dtype) * (mask.cast(dtype) * scale)


@lowers(aten.rrelu_with_noise_functional.default)
def rrelu_with_noise(x, noise, lower=0.125, upper=1 / 3, training=False, generator=None, *, rng):
    dtype = widen(x.dtype)
    x = operand(x, dtype)
    if not training:
        return (x < 0).where(x * ((lower + upper) / 2), x), noise
    slope = lower + unit(rng, x.shape, dtype) * (upper - lower)
    negative = m.less_equal(x, m.constant(0.0, dtype))
    return negative.where(x * slope, x), negative.where(slope, 1.0)


# Ranking every element against every other is exact and cheap up to here; above, a keyed bijection takes over.
RANKED_PERMUTATION = 2048


@lowers(aten.randperm.default, aten.randperm.generator)
def randperm(n, *, meta, rng):
    if n <= 1:
        return m.constant(0, dtypes.int64, (n,))
    return ranked_permutation(n, rng) if n <= RANKED_PERMUTATION else shuffled_permutation(n, rng)


def ranked_permutation(n: int, rng: Random) -> Tensor:
    """Each element's rank among random keys."""
    index = m.index_range(n, dtypes.int64)
    # the index in the low bits breaks ties
    keys = ((rng.words(n) >> 12).cast(dtypes.int64) * 2**12 + index).contiguous()
    return (keys.reshape(1, n) < keys.reshape(n, 1)).cast(dtypes.int32).sum(1)


def shuffled_permutation(n: int, rng: Random) -> Tensor:
    """A keyed bijection of the next power of two, restricted to n: each value's place counts the values below n that
    come before it. Cost is linear in n and there is nothing to sort."""
    bits = (n - 1).bit_length()
    keys = rng.words(FEISTEL_ROUNDS).contiguous()
    kept = (feistel(m.index_range(2**bits).cast(dtypes.uint32), bits, keys) < n).cast(dtypes.int32).contiguous()
    before = (running_sum(kept, 0) - kept).contiguous()
    place = feistel(m.index_range(n).cast(dtypes.uint32), bits, keys, inverse=True)
    return before[place.cast(dtypes.int32).contiguous()]


FEISTEL_ROUNDS = 8


def feistel(x: Tensor, bits: int, keys: Tensor, inverse: bool = False) -> Tensor:
    """A permutation of the `bits`-bit numbers: the halves take turns being masked with a keyed hash of the other."""
    low_bits = bits // 2
    low, high = x & (2**low_bits - 1), x >> low_bits
    for i in reversed(range(FEISTEL_ROUNDS)) if inverse else range(FEISTEL_ROUNDS):
        if i % 2:
            low = low ^ (mixed(high, keys[i]) >> (32 - low_bits))
        else:
            high = high ^ (mixed(low, keys[i]) >> (32 - (bits - low_bits)))
    return (high << low_bits) | low


def mixed(x: Tensor, key: Tensor) -> Tensor:
    """A keyed 32-bit hash, best in its upper bits."""
    x = (x + key.cast(dtypes.uint32)) * 0x9E3779B1
    x = (x ^ (x >> 15) ^ (key >> 32).cast(dtypes.uint32)) * 0x85EBCA77
    return (x ^ (x >> 13)) * 0xC2B2AE3D


FEW_DRAWS = 8  # up to here one reduction a draw is cheaper than sorting


@lowers(aten.multinomial.default)
def multinomial(weights, samples, replacement=False, *, meta, rng):
    """The largest of weight / exponential is a draw by weight, and the next ones are draws without replacement."""
    table = weights.reshape(-1, weights.shape[-1]).cast(widen(weights.dtype))
    if samples == 1 or not replacement:
        race = (table / -e.log(open_unit(rng, table.shape, table.dtype))).contiguous()
        if samples > FEW_DRAWS:
            return LOWERINGS["aten::topk"].function(race, samples, 1, True, True)[1].reshape(meta[0].shape)
        drawn = []
        for _ in range(samples):
            _, index = extreme_dim(race, 1, True)
            drawn.append(index)
            if len(drawn) < samples:
                taken = m.index_range(table.shape[1], dtypes.int64).reshape(1, -1).eq(index)
                race = taken.where(-1.0, race).contiguous()
        return Tensor.cat(*drawn, dim=1).reshape(meta[0].shape)
    cumulative = running_sum(table, 1).contiguous()
    summed = cumulative[:, -1:]
    point = unit(rng.branch(), (table.shape[0], samples), table.dtype) * summed
    point = (point < summed).where(point, summed * (1 - 2.0**-24))
    passed = (point.unsqueeze(2) < cumulative.unsqueeze(1)).logical_not()
    return passed.cast(dtypes.int32).sum(2).reshape(meta[0].shape)
