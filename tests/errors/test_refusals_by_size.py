"""What the CPU refuses is refused at any size, in its words: small calls are tried as they are, large ones by small
ones of their structure. Nothing is computed for it: tensors here are never written."""

import re

import pytest
import torch

from tests.differential import DEVICE, ON_TINY
from torch_tinygrad.conformance.compare import message_of

SMALL, LARGE, HUGE = 10, 700, 6000  # squared: below 1 MiB, above it, and above what a refusal is confirmed on


def ints(device, n, dtype=torch.int64):
    return torch.empty(n, n, dtype=dtype, device=device)


def floats(device, n, dtype=torch.float32):
    return torch.empty(n, n, dtype=dtype, device=device)


def zeros(device, n):
    return torch.zeros(n, dtype=torch.int64, device=device)


def shared(device, n):
    return torch.empty(n * n + 1, device=device)


# What is tried, with n rows and columns.
CALLS = {
    "add_ to expanded": lambda d, n: floats(d, n)[:1].expand(n, n).add_(1),
    "mul_ of expanded": lambda d, n: floats(d, n)[:, :1].expand(n, n).mul_(floats(d, n)),
    "copy_ to expanded": lambda d, n: floats(d, n)[:1].expand(n, n).copy_(floats(d, n)),
    "fill_ of expanded": lambda d, n: floats(d, n)[:1].expand(n, n).fill_(2),
    "zero_ of expanded": lambda d, n: floats(d, n)[:1].expand(n, n).zero_(),
    "masked_fill_ of expanded": lambda d, n: floats(d, n)[:1].expand(n, n).masked_fill_(ints(d, n, torch.bool), 1),
    "index_fill_ of expanded": lambda d, n: floats(d, n)[:1].expand(n, n).index_fill_(0, zeros(d, 1), 1),
    "index_put_ to expanded": lambda d, n: (
        floats(d, n)[:1].expand(n, n).index_put_((torch.tensor([0], device=d),), torch.tensor(1.0, device=d))
    ),
    "scatter_ to expanded": lambda d, n: (
        floats(d, n)[:1].expand(n, n).scatter_(0, torch.zeros(1, n, dtype=torch.int64, device=d), 1.0)
    ),
    "uniform_ of expanded": lambda d, n: floats(d, n)[:1].expand(n, n).uniform_(),
    "sin out= expanded": lambda d, n: torch.sin(floats(d, n), out=floats(d, n)[:1].expand(n, n)),
    "add_ partial overlap": lambda d, n: (lambda s: s[1:].add_(s[:-1]))(shared(d, n)),
    "mul_ partial overlap back": lambda d, n: (lambda s: s[:-1].mul_(s[1:]))(shared(d, n)),
    "exp out= partial overlap": lambda d, n: (lambda s: torch.exp(s[:-1], out=s[1:]))(shared(d, n)),
    "add_ transposed self": lambda d, n: (lambda s: s.add_(s.t()))(floats(d, n)),
    "add_ self": lambda d, n: (lambda s: s.add_(s))(floats(d, n)),
    "add_ halves": lambda d, n: (lambda s: s[: n // 2].add_(s[n // 2 :]))(floats(d, n)),
    "mm out= input": lambda d, n: (lambda s: torch.mm(s, s, out=s))(floats(d, n)),
    "gather out= input": lambda d, n: (lambda s: torch.gather(s, 0, ints(d, n).zero_(), out=s))(floats(d, n)),
    "index_add_ self": lambda d, n: (lambda s: s.index_add_(0, torch.zeros(n, dtype=torch.int64, device=d), s))(
        floats(d, n)
    ),
    "unfolded add_": lambda d, n: shared(d, n).unfold(0, 3, 1).add_(1),
    "integer ** -1": lambda d, n: ints(d, n) ** -1,
    "integer pow_ -2": lambda d, n: ints(d, n).pow_(-2),
    "index_select float": lambda d, n: torch.index_select(floats(d, n), 0, torch.zeros(3, device=d)),
    "gather int32": lambda d, n: torch.gather(floats(d, n), 0, ints(d, n, torch.int32).zero_()),
    "softmax of integers": lambda d, n: torch.softmax(ints(d, n), -1),
    "log_softmax of integers": lambda d, n: torch.log_softmax(ints(d, n), -1),
    "std of integers": lambda d, n: torch.std(ints(d, n)),
    "mean of integers": lambda d, n: torch.mean(ints(d, n)),
    "var_mean of bools": lambda d, n: torch.var_mean(ints(d, n, torch.bool), 0),
    "uniform_(2, 1)": lambda d, n: floats(d, n).uniform_(2, 1),
    "random_(5, 5)": lambda d, n: ints(d, n).random_(5, 5),
    "bernoulli_(3)": lambda d, n: floats(d, n).bernoulli_(3),
    "normal_(0, -1)": lambda d, n: floats(d, n).normal_(0, -1),
    "exponential_(-1)": lambda d, n: floats(d, n).exponential_(-1),
    "geometric_(2)": lambda d, n: floats(d, n).geometric_(2),
    "cauchy_(0, -1)": lambda d, n: floats(d, n).cauchy_(0, -1),
    "log_normal_(0, -1)": lambda d, n: floats(d, n).log_normal_(0, -1),
    "bucketize 2-D": lambda d, n: torch.bucketize(floats(d, n), floats(d, n)),
    "searchsorted shapes": lambda d, n: torch.searchsorted(floats(d, n), floats(d, n + 1)),
    "mm shapes": lambda d, n: floats(d, n) @ floats(d, n + 1),
    "mm dtypes": lambda d, n: floats(d, n) @ floats(d, n, torch.float64),
    "addmm dtypes": lambda d, n: torch.addmm(floats(d, n), floats(d, n), ints(d, n)),
    "add shapes": lambda d, n: floats(d, n) + floats(d, n + 1),
    "add bool alpha": lambda d, n: torch.add(ints(d, n, torch.bool), ints(d, n, torch.bool), alpha=2),
    "sub bools": lambda d, n: ints(d, n, torch.bool) - ints(d, n, torch.bool),
    "add_ result type": lambda d, n: ints(d, n).add_(floats(d, n)),
    "div_ result type": lambda d, n: ints(d, n).div_(ints(d, n)),
    "bitwise_and floats": lambda d, n: torch.bitwise_and(floats(d, n), 1),
    "shift floats": lambda d, n: floats(d, n) << floats(d, n),
    "cat shapes": lambda d, n: torch.cat([floats(d, n), floats(d, n + 1)]),
    "kthvalue k": lambda d, n: torch.kthvalue(floats(d, n), n + 1),
    "kthvalue fits": lambda d, n: torch.kthvalue(floats(d, n), n),
    "topk k": lambda d, n: torch.topk(floats(d, n), n + 1),
    "topk fits": lambda d, n: torch.topk(floats(d, n), n),
    "sum dim": lambda d, n: floats(d, n).sum(2),
    "sum dims twice": lambda d, n: floats(d, n).sum((0, 0)),
    "cumsum bool out": lambda d, n: torch.cumsum(floats(d, n), 0, out=ints(d, n, torch.bool)),
    "where dtypes": lambda d, n: torch.where(floats(d, n), floats(d, n), floats(d, n)),
    "masked_fill mask": lambda d, n: floats(d, n).masked_fill(floats(d, n), 1),
    "clamp bool": lambda d, n: torch.clamp(ints(d, n, torch.bool), 0, 1),
    "lerp dtypes": lambda d, n: torch.lerp(floats(d, n), floats(d, n, torch.float64), 0.5),
    "conv2d channels": lambda d, n: torch.conv2d(
        floats(d, n).expand(1, 3, n, n).contiguous(), torch.empty(4, 2, 3, 3, device=d)
    ),
    "conv2d kernel": lambda d, n: torch.conv2d(
        floats(d, n).expand(1, 2, n, n).contiguous(), torch.empty(4, 2, n + 1, 3, device=d)
    ),
    "max_pool kernel": lambda d, n: torch.max_pool2d(floats(d, n)[None], n + 3),
    "layer_norm shape": lambda d, n: torch.layer_norm(floats(d, n), (n + 1,)),
    "group_norm groups": lambda d, n: torch.group_norm(floats(d, n), 9999),
    "embedding floats": lambda d, n: torch.embedding(floats(d, n), floats(d, n)),
    "nll_loss shapes": lambda d, n: torch.nn.functional.nll_loss(
        floats(d, n), torch.zeros(n + 2, dtype=torch.int64, device=d)
    ),
    "cross_entropy of integers": lambda d, n: torch.nn.functional.cross_entropy(
        ints(d, n), torch.zeros(n, dtype=torch.int64, device=d)
    ),
    "argmax bool": lambda d, n: torch.argmax(ints(d, n, torch.bool)),
    "gelu integers": lambda d, n: torch.nn.functional.gelu(ints(d, n)),
    "tril 1-D": lambda d, n: torch.tril(shared(d, n)),
    "cdist shapes": lambda d, n: torch.cdist(floats(d, n), floats(d, n + 1)),
    "linear bias": lambda d, n: torch.nn.functional.linear(floats(d, n), floats(d, n), torch.empty(n + 1, device=d)),
    "dot 2-D": lambda d, n: torch.dot(floats(d, n), floats(d, n)),
    "dot sizes": lambda d, n: torch.dot(shared(d, n), shared(d, n)[1:]),
    "isin": lambda d, n: torch.isin(floats(d, n, torch.bfloat16), floats(d, n, torch.bfloat16)[:1, :1]),
}


def outcome(compute, device, n):
    try:
        result = compute(device, n)
    except Exception as error:
        return type(error).__name__, message_of(error)
    tensors = result if isinstance(result, tuple) else (result,)
    return [(t.shape, t.dtype) for t in tensors]


@pytest.mark.parametrize("n", [SMALL, LARGE])
@pytest.mark.parametrize("name", CALLS)
def test_the_same_is_refused_in_the_same_words(name, n):
    assert outcome(CALLS[name], DEVICE, n) == outcome(CALLS[name], "cpu", n)


@pytest.mark.skipif(not ON_TINY, reason="the CPU would compute")
@pytest.mark.parametrize("name", CALLS)
def test_the_same_is_refused_without_memory(name):
    """On tensors of a size that nobody could write here the words are those for small ones, but for sizes."""
    want, got = outcome(CALLS[name], "cpu", SMALL), outcome(CALLS[name], DEVICE, HUGE)
    if not isinstance(want, tuple):
        assert isinstance(got, list)
    else:
        assert got[0] == want[0]
        assert re.sub(r"\d", "", got[1]) == re.sub(r"\d", "", want[1])


@pytest.mark.parametrize(
    "call",
    [
        lambda x, dims: x.sum(dims),
        lambda x, dims: x.mean(dims),
        lambda x, dims: x.amax(dims),
        lambda x, dims: x.flip(dims),
        lambda x, dims: x.roll((1, 2)[: len(dims)], dims),
    ],
    ids=["sum", "mean", "amax", "flip", "roll"],
)
def test_a_call_of_known_structure_is_refused_for_its_dimensions(call):
    """Sizes of such a call come from a rule, which must look at what it was given."""
    for n in (60, 61, 700):
        for dims in ((0, 1), (0, 0), (-1, 1), (0, 2), (1,), (-3,)):
            wanted = outcome(lambda d, n, dims=dims: call(floats(d, n), dims), "cpu", n)
            assert outcome(lambda d, n, dims=dims: call(floats(d, n), dims), DEVICE, n) == wanted, (n, dims)
