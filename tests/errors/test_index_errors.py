"""Indices that select no place get the CPU's exception, at the operator that is given them and before anything is
recorded. Programs whose indices fit pay nothing: no flush, no kernel, no node."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.differential import DEVICE, ON_TINY, Cost, data, flush, message_of, raised_by, same_error

Table = Callable[[torch.Tensor, torch.Tensor, str], object]


def values(*shape: int, device: str) -> torch.Tensor:
    return data(*shape, device=device)


# name -> (shape of the indexed tensor, good values of the index, a bad one, what is done with both).
OPERATORS: dict[str, tuple[tuple[int, ...], list, int, Table]] = {
    "getitem": ((3, 4), [0, 2], 99, lambda x, i, d: x[i]),
    "getitem_before_the_first": ((3, 4), [0, -3], -4, lambda x, i, d: x[i]),
    "getitem_second_dim": ((3, 4), [0, 3], 4, lambda x, i, d: x[:, i]),
    "getitem_with_another": ((3, 4), [0, 3], 4, lambda x, i, d: x[torch.tensor([0, 1], device=d), i]),
    "getitem_apart": ((3, 4, 5), [0, 4], 5, lambda x, i, d: x[torch.tensor([0, 1], device=d), :, i]),
    "setitem": ((3, 4), [0, 2], 3, lambda x, i, d: x.__setitem__(i, 1.0)),
    "setitem_from_tensor": ((3, 4), [0, 2], 3, lambda x, i, d: x.__setitem__(i, values(2, 4, device=d))),
    "index_put_": ((3, 4), [0, 2], 3, lambda x, i, d: x.index_put_((i,), values(2, 4, device=d), accumulate=True)),
    "index_put": ((3, 4), [0, 2], 3, lambda x, i, d: x.index_put((i,), values(2, 4, device=d))),
    "index_select": ((3, 4), [0, 3], 4, lambda x, i, d: x.index_select(1, i)),
    "index_select_negative": ((3, 4), [0, 2], -1, lambda x, i, d: x.index_select(0, i)),
    "index_add_": ((3, 4), [0, 3], 4, lambda x, i, d: x.index_add_(1, i, values(3, 2, device=d))),
    "index_add_of_a_vector": ((3,), [0, 2], 3, lambda x, i, d: x.index_add_(0, i, values(2, device=d))),
    "index_copy_": ((3, 4), [0, 3], 4, lambda x, i, d: x.index_copy_(1, i, values(3, 2, device=d))),
    "index_fill_": ((3, 4), [0, -4], -5, lambda x, i, d: x.index_fill_(1, i, 2.0)),
    "index_reduce_": ((3, 4), [0, 3], 4, lambda x, i, d: x.index_reduce_(1, i, values(3, 2, device=d), "prod")),
    "gather": ((3, 4), [[0, 2]], 5, lambda x, i, d: x.gather(0, i)),
    "gather_negative": ((3, 4), [[0, 2]], -1, lambda x, i, d: x.gather(0, i)),
    "gather_expanded": ((3, 4), [[0, 3]], 4, lambda x, i, d: x.gather(1, i.expand(3, 2))),
    "gather_out": ((3, 4), [[0, 2]], 5, lambda x, i, d: torch.gather(x, 0, i, out=torch.empty(1, 2, device=d))),
    "scatter_number": ((3, 4), [[0, 3]], 4, lambda x, i, d: x.scatter(1, i, 2.0)),
    "scatter_": ((3, 4), [[0, 3]], 4, lambda x, i, d: x.scatter_(1, i, values(3, 4, device=d))),
    "scatter_add_": ((3, 4), [[0, 3]], 4, lambda x, i, d: x.scatter_add_(1, i, values(3, 4, device=d))),
    "scatter_reduce_": ((3, 4), [[0, 3]], 4, lambda x, i, d: x.scatter_reduce_(1, i, values(3, 4, device=d), "amax")),
    "take": ((3, 4), [0, -12], 12, lambda x, i, d: x.take(i)),
    "put_": ((3, 4), [0, 11], -13, lambda x, i, d: x.put_(i, values(2, device=d))),
    "embedding": ((3, 4), [0, 2], 3, lambda x, i, d: F.embedding(i, x)),
    "embedding_negative": ((3, 4), [0, 2], -1, lambda x, i, d: F.embedding(i, x)),
    "embedding_max_norm": ((3, 4), [0, 2], 3, lambda x, i, d: F.embedding(i, x, max_norm=1.0)),
    "embedding_bag": ((3, 4), [[0, 2]], 3, lambda x, i, d: F.embedding_bag(i, x)),
    "nll_loss": ((2, 4), [0, 3], 4, lambda x, i, d: F.nll_loss(x, i)),
    "nll_loss_negative": ((2, 4), [0, -100], -1, lambda x, i, d: F.nll_loss(x, i)),
    "nll_loss_weight": ((2, 4), [0, 3], 4, lambda x, i, d: F.nll_loss(x, i, values(4, device=d))),
    "cross_entropy": ((2, 4), [0, 3], 10, lambda x, i, d: F.cross_entropy(x, i)),
    "cross_entropy_ignoring": ((2, 4), [0, 255], 254, lambda x, i, d: F.cross_entropy(x, i, ignore_index=255)),
    "cross_entropy_smoothed": ((2, 4), [0, 3], 4, lambda x, i, d: F.cross_entropy(x, i, label_smoothing=0.1)),
    "cross_entropy_of_an_image": ((1, 4, 1, 2), [[[0, 3]]], 4, lambda x, i, d: F.cross_entropy(x, i)),
    "cross_entropy_of_one": ((4,), 3, 4, lambda x, i, d: F.cross_entropy(x, i)),
    "multi_margin_loss": ((2, 4), [0, 3], 4, lambda x, i, d: F.multi_margin_loss(x, i)),
    "multilabel_margin_loss": ((1, 4), [[0, 3, -1, 0]], 4, lambda x, i, d: F.multilabel_margin_loss(x, i)),
    "max_unpool2d": ((1, 1, 1, 2), [[[[0, 7]]]], 8, lambda x, i, d: F.max_unpool2d(x, i, 2)),
    "searchsorted": ((3,), [0, 1, 2], 3, lambda x, i, d: torch.searchsorted(x, x, sorter=i)),
    "one_hot": ((3,), [0, 3], 4, lambda x, i, d: F.one_hot(i, 4)),
    "one_hot_negative": ((3,), [0, 3], -1, lambda x, i, d: F.one_hot(i)),
}


def with_bad(good: list | int, bad: int) -> list | int:
    """The index with its last value replaced."""
    return [*good[:-1], with_bad(good[-1], bad)] if isinstance(good, list) else bad


def uploaded(index: list | int, device: str) -> torch.Tensor:
    return torch.tensor(index, device=device)


def computed(index: list | int, device: str) -> torch.Tensor:
    """The same values, of which nothing is known without computing them."""
    return (torch.tensor(index, dtype=torch.float64).to(device) * 2 / 2).long()


def added(index: list | int, device: str) -> torch.Tensor:
    """The same values, of which the range is known."""
    return torch.tensor(index, device=device) + 3 - 3


def part(index: list | int, device: str) -> torch.Tensor:
    """The same values, as a part of a storage that holds others."""
    whole = torch.tensor(index)
    return torch.stack([torch.full_like(whole, 10**6), whole, torch.full_like(whole, -(10**6))]).to(device)[1]


SOURCES = {f.__name__: f for f in (uploaded, computed, added, part)}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", OPERATORS)
def test_bad_index_gets_the_exception_of_the_cpu(name, source):
    shape, good, bad, act = OPERATORS[name]

    def make(device: str):
        return values(*shape, device=device), SOURCES[source](with_bad(good, bad), device), device

    assert same_error(lambda made: act(*made), make)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", OPERATORS)
def test_good_index_is_accepted(name, source):
    shape, good, _, act = OPERATORS[name]
    results = []
    for device in ("cpu", DEVICE):
        x = values(*shape, device=device)
        result = act(x, SOURCES[source](good, device), device)
        results.append([x.cpu(), *([result.cpu()] if isinstance(result, torch.Tensor) else [])])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("dtype", (torch.int32, torch.int64))
@pytest.mark.parametrize("name", ("getitem", "setitem", "index_select", "index_add_", "embedding", "embedding_bag"))
def test_every_dtype_of_an_index_is_looked_at(name, dtype):
    shape, good, bad, act = OPERATORS[name]
    assert same_error(
        lambda made: act(*made),
        lambda device: (values(*shape, device=device), uploaded(with_bad(good, bad), device).to(dtype), device),
    )


def test_index_on_the_cpu_is_looked_at():
    assert same_error(lambda x: x[torch.tensor([0, 9])], lambda device: values(3, device=device))


def test_index_into_nothing():
    assert same_error(lambda x: x[torch.zeros(1, dtype=torch.int64).to(x.device)], lambda d: values(0, 3, device=d))


def test_large_arguments_too():
    def make(device: str):
        return values(2000, 300, device=device), torch.arange(2001).to(device)

    assert same_error(lambda made: made[0][made[1]], make)
    assert same_error(lambda made: F.embedding(made[1], made[0]), make)


def test_mask_of_another_shape():
    assert same_error(lambda x: x[torch.ones(4, dtype=torch.bool).to(x.device)], lambda d: values(3, 4, device=d))


# ------------------------------------------------------------------------------------------- what changes under a name


def test_writes_after_the_upload_count():
    def make(device: str):
        return values(5, device=device), torch.tensor([0, 1, 2]).to(device)

    def moved(made):
        x, index = made
        index.add_(3)
        return x[index]

    def one_element(made):
        x, index = made
        index[1] = 7
        return x[index]

    def through_a_view(made):
        x, index = made
        index.view(3, 1)[2:].copy_(torch.full((1, 1), -6))
        return x[index]

    def copied_over(made):
        x, index = made
        index.copy_(torch.tensor([5, 0, 0]))
        return x[index]

    def as_other_bits(made):
        x, index = made
        index.view(torch.int32)[1] = 1
        return x[index]

    for act in (moved, one_element, through_a_view, copied_over, as_other_bits):
        errors = [raised_by(lambda act=act, device=device: act(make(device))) for device in ("cpu", DEVICE)]
        assert [type(e) for e in errors] == [IndexError, IndexError], act.__name__
        assert message_of(errors[0]) == message_of(errors[1]), act.__name__


def test_bad_values_that_were_overwritten_do_not_count():
    for device in ("cpu", DEVICE):
        x, index = values(5, device=device), torch.tensor([0, 99, 2]).to(device)
        index[1] = 4
        assert x[index].tolist() == data(5)[[0, 4, 2]].tolist()
        index = torch.tensor([0, 99, 2]).to(device).clamp_(max=4)
        assert x[index].tolist() == data(5)[[0, 4, 2]].tolist()


def test_index_that_grew():
    def make(device: str):
        index = torch.tensor([0, 1]).to(device)
        index.resize_(3)
        index[2] = 9
        return values(5, device=device), index

    assert same_error(lambda made: made[0][made[1]], make)


# -------------------------------------------------------------------------------------------------------- after errors


@pytest.mark.parametrize("source", ("uploaded", "computed"))
def test_everything_works_after_an_error(source):
    x, weight = values(4, 3, device=DEVICE), values(5, 3, device=DEVICE)
    pending = x * 2
    view = pending[1:]
    pending[0] = 7
    for name, (shape, good, bad, act) in OPERATORS.items():
        target, index = values(*shape, device=DEVICE), SOURCES[source](with_bad(good, bad), DEVICE)
        assert raised_by(partial(act, target, index, DEVICE)) is not None, name
        assert target.tolist() == data(*shape).tolist(), name
    want = data(4, 3) * 2
    want[0] = 7
    assert pending.tolist() == want.tolist() and view.tolist() == want[1:].tolist()
    assert F.embedding(torch.tensor([4, 0]).to(DEVICE), weight).tolist() == data(5, 3)[[4, 0]].tolist()


class TakesInBackward(torch.autograd.Function):
    """An index that is used only on the way back."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad[ctx.saved_tensors[0]], None


@pytest.mark.parametrize("source", ("uploaded", "computed"))
def test_error_inside_backward(source):
    def act(made):
        x, index = made
        TakesInBackward.apply(x, index).sum().backward()

    def make(device: str):
        return values(3, device=device).requires_grad_(), SOURCES[source]([0, 1, 3], device)

    assert same_error(act, make)
    x = values(3, device=DEVICE).requires_grad_()
    TakesInBackward.apply(x, SOURCES[source]([0, 1, 2], DEVICE)).sum().backward()
    assert x.grad.tolist() == [1, 1, 1]


def test_training_goes_on_after_a_bad_batch():
    def losses(device: str) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(12, 5)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        seen = []
        for step in range(6):
            tokens = torch.arange(12).reshape(4, 3) % 6 + (10 if step == 2 else 0)
            labels = torch.arange(4) + (4 if step == 4 else 0)
            optimizer.zero_grad()
            try:
                loss = F.cross_entropy(model(tokens.to(device)), labels.to(device))
                loss.backward()
            except IndexError:
                continue
            optimizer.step()
            seen.append(loss.item())
        return seen

    want = losses("cpu")
    assert len(want) == 4
    torch.testing.assert_close(losses(DEVICE), want)


# --------------------------------------------------------------------------------------------------------------- costs


def recorded(program: Callable[[], object]) -> None:
    """The program only records: nothing in it asks for a value."""
    with Cost() as cost:
        kept = program()
    del kept
    cost.expect(flushes=0, kernels=0)


def table() -> torch.Tensor:
    return values(10, 4, device=DEVICE)


KNOWN = {
    "uploaded": lambda: table()[torch.tensor([0, 9, -1]).to(DEVICE)],
    "a part of what was uploaded": lambda: F.embedding(torch.arange(10).to(DEVICE)[3:7].clone(), table()),
    "arange": lambda: table()[torch.arange(10, device=DEVICE)],
    "arange backwards": lambda: table()[torch.arange(9, -1, -1, device=DEVICE)],
    "argmax": lambda: F.embedding(table().argmax(0), table()),
    "sort": lambda: table().gather(0, table().sort(0).indices),
    "argsort scattered": lambda: table().scatter(0, table().argsort(0), 1.0),
    "topk": lambda: table().index_select(0, table()[:, 0].topk(3).indices),
    "max along": lambda: table().index_select(0, table().max(0).indices),
    "randint": lambda: table()[torch.randint(0, 10, (20,), device=DEVICE)],
    "randperm": lambda: table()[torch.randperm(10, device=DEVICE)[:4]],
    "labels drawn": lambda: F.cross_entropy(
        table(), torch.arange(10).to(DEVICE)[torch.randint(0, 4, (10,), device=DEVICE)] % 4
    ),
    "labels ignored": lambda: F.cross_entropy(table(), torch.tensor([0, 3, -100, 2, -100, 1, 1, 1, 0, 3]).to(DEVICE)),
    "labels ignored in part": lambda: F.cross_entropy(
        table(), torch.tensor([[9, 0, 3, -100, 2, -100, 1, 1, 1, 0, 3]]).clamp(max=3).to(DEVICE)[:, 1:].reshape(-1)
    ),
    "labels masked": lambda: F.cross_entropy(
        table(), torch.tensor([0, 1] * 5).to(DEVICE).masked_fill(table()[:, 0] > 0, -100)
    ),
    "an ignored label above": lambda: F.cross_entropy(table(), torch.tensor([0, 255] * 5).to(DEVICE), ignore_index=255),
    "bool as integers": lambda: table()[(table()[:, 0] > 0).long()],
    "remainder": lambda: table()[(table()[:, 0] * 1000).long() % 10],
    "clamped": lambda: table()[(table()[:, 0] * 1000).long().clamp(0, 9)],
    "bits": lambda: table()[(table()[:, 0] * 1000).long() & 7],
    "positions of a mask": lambda: F.embedding(
        (torch.tensor([1, 1, 0, 1]).to(DEVICE) != 0).int().cumsum(0) * 1 + 1, table()
    ),
    "buckets": lambda: table()[torch.bucketize(table(), torch.arange(9.0).to(DEVICE))],
    "concatenated": lambda: table()[torch.cat([torch.arange(3, device=DEVICE), table().argmin(0)])],
    "where": lambda: table()[torch.where(table()[:, 0] > 0, torch.arange(10, device=DEVICE), 0)],
    "written by parts": lambda: table()[parts_written()],
    "pooled and unpooled": lambda: F.max_unpool2d(
        *F.max_pool2d(values(1, 1, 4, 4, device=DEVICE), 2, return_indices=True), 2
    ),
    "one hot": lambda: F.one_hot(table().argmax(1), 4),
}


def parts_written() -> torch.Tensor:
    index = torch.empty(10, dtype=torch.int64, device=DEVICE)
    for i in range(10):
        index[i] = 9 - i
    return index


@pytest.mark.parametrize("name", KNOWN)
def test_index_that_is_known_to_fit_costs_nothing(name):
    recorded(KNOWN[name])


def test_training_with_embeddings_flushes_once_a_step():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 5)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randint(0, 10, (4, 3)).to(DEVICE)), torch.randint(0, 5, (4,)).to(DEVICE)).backward()
        optimizer.step()

    for _ in range(3):
        step()
    with Cost() as cost:
        for _ in range(5):
            step()
    cost.expect(flushes=5, compiles=0)


def test_decoding_flushes_once_a_token():
    embedding, head = values(10, 4, device=DEVICE), values(4, 10, device=DEVICE)

    def decode(count: int) -> list[int]:
        token, tokens = torch.tensor([3]).to(DEVICE), []
        for _ in range(count):
            token = (F.embedding(token, embedding) @ head).argmax(-1)
            tokens.append(token.item())
        return tokens

    decode(3)
    with Cost() as cost:
        decode(6)
    cost.expect(flushes=6, compiles=0)


def test_setitem_loop_stays_one_kernel():
    a, rows = values(100, 4, device=DEVICE), torch.arange(100).to(DEVICE)
    flush()

    def loop() -> None:
        for i in range(100):
            a[i] = i

    loop()
    with Cost() as cost:
        loop()
        flush()
    cost.expect(flushes=1, kernels=1)
    recorded(lambda: [a[rows[i]] for i in range(20)])


def test_computed_index_is_looked_at_once():
    """Of an index that was computed from floats nothing is known: its values are read where it is first used."""
    x = table()
    with Cost() as cost:
        index = computed(list(range(10)), DEVICE)
        picked = [x[index[i]] for i in range(10)] + [x[index], F.embedding(index, x)]
    cost.expect(flushes=1)
    assert picked[-1].tolist() == data(10, 4).tolist() and picked[3].tolist() == data(10, 4)[3].tolist()


# ----------------------------------------------------------------------------------------------- what is known is true


def known(t: torch.Tensor) -> tuple[int, int] | None:
    from torch_tinygrad import _C

    return _C.known_range(t)


BINARY = (torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.remainder, torch.bitwise_and)
STEPS: dict[str, Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]] = {
    **{f.__name__: (lambda a, b, n, f=f: f(a, b)) for f in BINARY if f is not torch.remainder},
    **{f"{f.__name__} with a number": (lambda a, b, n, f=f: f(a, n or 1)) for f in (torch.add, torch.sub, torch.mul)},
    "remainder": lambda a, b, n: a % (n or 1),
    "floor": lambda a, b, n: a // (n or 1),
    "trunc": lambda a, b, n: torch.div(a, n or 1, rounding_mode="trunc"),
    "alpha": lambda a, b, n: torch.add(a, b, alpha=n),
    "rsub": lambda a, b, n: n - a,
    "neg": lambda a, b, n: -a,
    "abs": lambda a, b, n: a.abs(),
    "clamp": lambda a, b, n: a.clamp(n, n + 5),
    "clamp_min": lambda a, b, n: a.clamp(min=n),
    "clamp_max": lambda a, b, n: a.clamp(max=n),
    "shift": lambda a, b, n: a >> (n % 4),
    "and a number": lambda a, b, n: a & n,
    "sum": lambda a, b, n: a.sum(0, keepdim=True) + b,
    "cumsum": lambda a, b, n: a.cumsum(0),
    "where": lambda a, b, n: torch.where(a > n, a, b),
    "cat": lambda a, b, n: torch.cat([a, b])[3:11],
    "masked": lambda a, b, n: a.masked_fill(b > n, n),
    "pad": lambda a, b, n: F.pad(a, (1, 1), value=n)[:8],
    "tril": lambda a, b, n: a.reshape(2, 4).tril().reshape(8),
    "sorted": lambda a, b, n: a.sort().values,
    "order": lambda a, b, n: a.argsort(),
    "argmax": lambda a, b, n: a.reshape(2, 4).argmax(1, keepdim=True) + b.reshape(2, 4)[:, :0].sum(),
    "flip": lambda a, b, n: a.flip(0),
    "in place": lambda a, b, n: a.clone().add_(b).mul_(n),
    "part written": lambda a, b, n: part_written(a, b),
    "narrowed": lambda a, b, n: a.to(torch.int8).to(torch.int64),
    "unsigned": lambda a, b, n: a.to(torch.uint8).to(torch.int64),
    "through float": lambda a, b, n: (a.float() * 0.5).long(),
    "scattered": lambda a, b, n: a.scatter(0, torch.arange(4, device=a.device), b),
    "scattered sums": lambda a, b, n: a.scatter_add(0, torch.arange(4, device=a.device), b),
    "put": lambda a, b, n: a.index_put((torch.arange(4, device=a.device),), b[:4]),
    "put sums": lambda a, b, n: a.index_put((torch.arange(4, device=a.device),), b[:4], accumulate=True),
    "filled": lambda a, b, n: a.index_fill(0, torch.arange(2, device=a.device), n),
    "arange": lambda a, b, n: torch.arange(n, n + 16, 2, device=a.device),
    "arange down": lambda a, b, n: torch.arange(n, n - 8, -1, device=a.device),
    "full": lambda a, b, n: torch.full((8,), n, device=a.device),
    "repeat": lambda a, b, n: a.repeat(2)[2:10],
    "counted": lambda a, b, n: (a.reshape(2, 4) != 0).sum(1).repeat(4),
    "bits of a float": lambda a, b, n: a.double().view(torch.int64),
    "median": lambda a, b, n: a.reshape(2, 4).median(1).indices.repeat(4),
}


def part_written(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a = a.clone()
    a[2:5] = b[2:5]
    a[0] = 3
    return a


@pytest.mark.skipif(not ON_TINY, reason="ranges are the device's")
@pytest.mark.parametrize("seed", range(12))
def test_no_value_is_outside_of_what_is_known(seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randint(-9, 10, (8,), generator=generator).to(DEVICE) for _ in range(3)]
    tensors.append(torch.tensor([-(2**62), 2**62, 1, 0, -1, 2**63 - 1, -(2**63), 5]).to(DEVICE))
    names = list(STEPS)
    claims = 0
    for _ in range(60):
        i, j, k, n = (int(v) for v in torch.randint(0, 10**6, (4,), generator=generator))
        name = names[k % len(names)]
        result = STEPS[name](tensors[i % len(tensors)], tensors[j % len(tensors)], n % 13 - 4)
        result = result.expand(2, 4).reshape(8) if result.dim() == 2 else result
        claim = known(result)
        found = result.tolist()
        if claim is not None:
            claims += 1
            assert claim[0] <= min(found) and max(found) <= claim[1], f"{name}: {found} is not within {claim}"
        tensors[int(torch.randint(0, len(tensors), (1,), generator=generator))] = result
    assert claims > 10


# With a number, or a tensor of no dimension, of another type: it is converted to that of the integers first.
WITH_ONE: dict[str, Callable] = {
    **{f.__name__: f for f in (torch.add, torch.sub, torch.rsub, torch.mul, torch.remainder, torch.fmod)},
    **{f.__name__: f for f in (torch.floor_divide, torch.bitwise_and, torch.bitwise_or, torch.gt, torch.le, torch.eq)},
    **{f.__name__: f for f in (torch.clamp_min, torch.clamp_max)},
    "trunc": lambda a, n: torch.div(a, n, rounding_mode="trunc"),
    "clamp": lambda a, n: torch.clamp(a, n, 100),
    "clamp below": lambda a, n: torch.clamp(a, 3, n),
    "maximum": lambda a, n: torch.maximum(a, n if isinstance(n, torch.Tensor) else torch.tensor(n, device=a.device)),
    "minimum": lambda a, n: torch.minimum(a, n if isinstance(n, torch.Tensor) else torch.tensor(n, device=a.device)),
    "where": lambda a, n: torch.where(a > 0, a, n),
    "isin": torch.isin,
}


@pytest.mark.skipif(not ON_TINY, reason="ranges are the device's")
@pytest.mark.parametrize("is_tensor", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16], ids=str)
@pytest.mark.parametrize("name", list(WITH_ONE))
def test_what_is_known_allows_for_numbers_that_do_not_fit_the_type(name, dtype, is_tensor):
    for low, n in itertools.product((0, 60, 100), (-70000, -300, -16, -1, 129, 257, 300, 65600)):
        a = torch.arange(low, low + 5, dtype=dtype)
        try:
            expected = WITH_ONE[name](a, torch.tensor(n) if is_tensor else n)
        except RuntimeError as error:
            with pytest.raises(type(error)):
                WITH_ONE[name](a.to(DEVICE), torch.tensor(n) if is_tensor else n)
            continue
        result = WITH_ONE[name](a.to(DEVICE), torch.tensor(n) if is_tensor else n)
        claim = known(result)
        assert result.tolist() == expected.tolist(), (n, low)
        if claim is not None:
            assert claim[0] <= expected.min() and expected.max() <= claim[1], (n, low, expected.tolist(), claim)


def test_a_mask_of_bytes_that_were_clamped_by_a_negative_number():
    t = torch.zeros((), dtype=torch.uint8, device=DEVICE).clamp(-16, 16).sum(-1)
    t[t > 2] = 1
    assert t.item() == 1
