"""Random numbers are right in distribution, reproducible from a seed or a generator, and new at every replay."""

import numpy
import pytest
import torch
from scipy import stats
from torch import nn

from tests.differential import Cost

COUNT = 20_000

# What fills a tensor, and the distribution that it should have.
CONTINUOUS = {
    "normal_": (lambda t, g: t.normal_(2, 3, generator=g), stats.norm(2, 3)),
    "uniform_": (lambda t, g: t.uniform_(-1, 4, generator=g), stats.uniform(-1, 5)),
    "exponential_": (lambda t, g: t.exponential_(0.5, generator=g), stats.expon(scale=2)),
    "cauchy_": (lambda t, g: t.cauchy_(1, 2, generator=g), stats.cauchy(1, 2)),
    "log_normal_": (lambda t, g: t.log_normal_(0.5, 0.25, generator=g), stats.lognorm(0.25, scale=numpy.exp(0.5))),
    "rand": (lambda t, g: torch.rand(COUNT, device=t.device, generator=g), stats.uniform()),
    "randn": (lambda t, g: torch.randn(COUNT, device=t.device, generator=g), stats.norm()),
}
DISCRETE = {
    "geometric_": (lambda t, g: t.geometric_(0.3, generator=g), stats.geom(0.3)),
    "bernoulli_": (lambda t, g: t.bernoulli_(0.2, generator=g), stats.bernoulli(0.2)),
    "random_": (lambda t, g: t.random_(3, 9, generator=g), stats.randint(3, 9)),
    "randint": (lambda t, g: torch.randint(-2, 3, (COUNT,), device=t.device, generator=g), stats.randint(-2, 3)),
    "bernoulli": (lambda t, g: torch.bernoulli(torch.full_like(t, 0.7), generator=g), stats.bernoulli(0.7)),
    "multinomial": (
        lambda t, g: torch.multinomial(torch.tensor([1.0, 2, 5], device=t.device), COUNT, True, generator=g),
        stats.rv_discrete(values=([0, 1, 2], [0.125, 0.25, 0.625])),
    ),
    "dropout": (lambda t, g: nn.functional.dropout(torch.ones_like(t), 0.4) * 0.6, stats.bernoulli(0.6)),
}


def drawn(draw, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    generator = torch.Generator("tiny").manual_seed(seed)
    return draw(torch.empty(COUNT, device="tiny"), generator).cpu()


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name):
    draw, distribution = CONTINUOUS[name]
    assert stats.kstest(drawn(draw, 1).double().numpy(), distribution.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distributions(name):
    draw, distribution = DISCRETE[name]
    values, counts = numpy.unique(drawn(draw, 1).double().round().numpy(), return_counts=True)
    expected = distribution.pmf(values) * COUNT
    often = expected >= 5
    rest = max(COUNT - expected[often].sum(), 1e-9)
    observed = numpy.append(counts[often], COUNT - counts[often].sum())
    wanted = numpy.append(expected[often], rest)
    kept = wanted > 1e-6 * COUNT
    assert observed[~kept].sum() == 0
    statistic = ((observed - wanted)[kept] ** 2 / wanted[kept]).sum()
    assert stats.chi2.sf(statistic, max(kept.sum() - 1, 1)) > 1e-3


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_seeds_repeat_and_replays_are_new(name):
    draw, _ = {**CONTINUOUS, **DISCRETE}[name]
    first = drawn(draw, 3)
    assert torch.equal(drawn(draw, 3), first) and not torch.equal(drawn(draw, 4), first)
    generator = torch.Generator("tiny").manual_seed(5)
    torch.manual_seed(5)
    draw(torch.empty(COUNT, device="tiny"), generator).cpu()
    with Cost() as cost:
        second, third = (draw(torch.empty(COUNT, device="tiny"), generator).cpu() for _ in range(2))
    assert not torch.equal(second, third)
    cost.expect(compiles=0)


def test_permutations_are_permutations_and_even():
    """Every place gets every element about equally often."""
    torch.manual_seed(0)
    permutations = torch.stack([torch.randperm(5, device="tiny") for _ in range(600)]).cpu()
    assert (permutations.sort(1).values == torch.arange(5)).all()
    counts = numpy.stack([numpy.bincount(permutations[:, place], minlength=5) for place in range(5)])
    assert stats.chi2.sf(((counts - 120) ** 2 / 120).sum(), 16) > 1e-3


def test_neighbouring_numbers_are_independent():
    torch.manual_seed(0)
    values = torch.rand(COUNT, device="tiny").cpu().numpy()
    assert abs(numpy.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / numpy.sqrt(COUNT)


# What PyTorch's own kernels draw, from a generator of theirs that ours seeds.
DRAWN_BY_PYTORCH = {
    "poisson": lambda g: torch.poisson(torch.full((50,), 4.0, device="tiny"), generator=g),
    "binomial": lambda g: torch.binomial(*(torch.full((50,), v, device="tiny") for v in (20.0, 0.3)), generator=g),
    "gamma": lambda g: torch._standard_gamma(torch.full((50,), 2.0, device="tiny"), generator=g),
    "dirichlet": lambda g: torch._sample_dirichlet(torch.full((50, 3), 2.0, device="tiny"), generator=g),
}


@pytest.mark.parametrize("mode", ["never", "always", "auto"])
@pytest.mark.parametrize("name", DRAWN_BY_PYTORCH)
def test_what_pytorch_draws_follows_our_generators(name, mode, cpu_operators):
    draw, before = DRAWN_BY_PYTORCH[name], torch.get_rng_state()
    with torch.tiny.compile_mode(mode):
        generator = torch.Generator("tiny").manual_seed(3)
        first, second = draw(generator).cpu(), draw(generator).cpu()
        assert torch.equal(first, draw(generator.manual_seed(3)).cpu()) and not torch.equal(first, second)
        assert torch.equal(second, draw(generator).cpu())
        torch.tiny.manual_seed(3)
        default = draw(None).cpu()
        assert not torch.equal(draw(None).cpu(), default)
        torch.tiny.manual_seed(3)
        assert torch.equal(draw(None).cpu(), default)
    assert torch.equal(torch.get_rng_state(), before)


EXACT = {"uniform_", "rand", "geometric_", "bernoulli_", "random_", "randint", "bernoulli", "multinomial", "dropout"}


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_both_ways_draw_the_same_numbers(name):
    """Up to the rounding of logarithms and waves."""
    draw, _ = {**CONTINUOUS, **DISCRETE}[name]
    found = []
    for mode in ("always", "never"):
        with torch.tiny.compile_mode(mode):
            found.append(drawn(draw, 6).double())
    rounding = {"rtol": 0, "atol": 0} if name in EXACT else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(found[0], found[1], **rounding)


@pytest.mark.parametrize("mode", ["always", "never"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_uniform_numbers_stay_below_their_bound(dtype, mode):
    torch.manual_seed(0)
    with torch.tiny.compile_mode(mode):
        for low, high in ((2, 3), (0, 1), (-1, 0), (-1e-3, 1e4)):
            numbers = torch.empty(100_000, dtype=dtype, device="tiny").uniform_(low, high).cpu()
            assert numbers.min() >= torch.tensor(low, dtype=dtype) and numbers.max() < torch.tensor(high, dtype=dtype)


def test_calls_and_seeds_are_independent():
    def numbers(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return [torch.randn(COUNT, device="tiny").cpu() for _ in range(3)]

    streams = torch.stack([*numbers(0), *numbers(1), *numbers(2), *numbers(2**32), *numbers(2**40)])
    correlations = torch.corrcoef(streams) - torch.eye(len(streams))
    assert correlations.abs().max() < 5 / COUNT**0.5


def test_multinomial_waits_for_nothing():
    weights = torch.rand(50, device="tiny")
    with Cost() as cost:
        draws = [torch.multinomial(weights, 2) for _ in range(20)]
        torch.tiny.synchronize()
    assert len(draws) == 20
    cost.at_most(flushes=1)
