"""Calls that the CPU refuses, also for values of their arguments, and relatives that it takes: word for word."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

from tests.differential import DEVICE
from torch_tinygrad.conformance.compare import compare_errors, compare_results
from torch_tinygrad.conformance.runner import attempt


def t(device, values, **options):
    return torch.tensor(values, device=device, **options)


def with_base(base, write):
    """What was returned, and all of what was written to."""
    return write(base), base


CALLS = {
    "masked_scatter few": lambda d: torch.zeros(4, device=d).masked_scatter_(t(d, [True] * 4), torch.ones(2, device=d)),
    "masked_scatter few2": lambda d: torch.zeros(4, device=d).masked_scatter(
        t(d, [True, False, True, True]), torch.ones(2, device=d)
    ),
    "masked_scatter ok": lambda d: torch.zeros(4, device=d).masked_scatter(
        t(d, [True, False, True, False]), torch.ones(2, device=d)
    ),
    "mask values mismatch": lambda d: torch.zeros(4, device=d).index_put_(
        (t(d, [True, False, True, True]),), torch.ones(2, device=d)
    ),
    "mask setitem mismatch": lambda d: torch.zeros(4, device=d).__setitem__(
        t(d, [True, False, True, True]), torch.ones(2, device=d)
    ),
    "mask setitem none": lambda d: torch.zeros(4, device=d).__setitem__(t(d, [False] * 4), torch.ones(2, device=d)),
    "mask setitem 0 values": lambda d: torch.zeros(4, device=d).__setitem__(
        t(d, [True, False, True, True]), torch.ones(0, device=d)
    ),
    "mask put acc none": lambda d: torch.zeros(4, device=d).index_put_(
        (t(d, [False] * 4),), torch.ones(1, device=d), accumulate=True
    ),
    "mask put acc none0": lambda d: torch.zeros(4, device=d).index_put_(
        (t(d, [False] * 4),), torch.ones(0, device=d), accumulate=True
    ),
    "mask put acc none00": lambda d: torch.zeros(4, 3, device=d).index_put_(
        (t(d, [False] * 4),), torch.ones(0, 3, device=d), accumulate=True
    ),
    "bernoulli p": lambda d: torch.bernoulli(t(d, [0.5, 1.5])),
    "bernoulli nan": lambda d: torch.bernoulli(t(d, [0.5, float("nan")])),
    "bernoulli_ p": lambda d: torch.zeros(2, device=d).bernoulli_(t(d, [0.5, 1.5])),
    "bernoulli_ double": lambda d: torch.zeros(2, device=d).bernoulli_(t(d, [0.5, -1.5], dtype=torch.float64)),
    "normal std": lambda d: torch.normal(t(d, [0.5, -1.5]), t(d, [0.5, -1.5])),
    "normal std2": lambda d: torch.normal(0.0, t(d, [0.5, -1.5])),
    "normal std3": lambda d: torch.normal(t(d, [0.5, -1.5]), -1.0),
    "normal std out": lambda d: torch.normal(0.0, t(d, [0.5, -1.5]), out=torch.empty(2, device=d)),
    "bce": lambda d: F.binary_cross_entropy(t(d, [0.5, 1.5]), t(d, [0.0, 1.0])),
    "bce t": lambda d: F.binary_cross_entropy(t(d, [0.5, 0.5]), t(d, [0.0, 2.0])),
    "bce nan": lambda d: F.binary_cross_entropy(t(d, [0.5, float("nan")]), t(d, [0.0, 1.0])),
    "histc nan": lambda d: torch.histc(t(d, [0.5, float("nan")])),
    "histc inf": lambda d: torch.histc(t(d, [0.5, float("inf")])),
    "histc nan r": lambda d: torch.histc(t(d, [0.5, float("nan")]), 10, 0, 1),
    "histc range": lambda d: torch.histc(t(d, [0.5, 1.0]), 10, 2, 1),
    "eb off": lambda d: F.embedding_bag(t(d, [0, 1, 2]), torch.ones(4, 3, device=d), t(d, [1, 2])),
    "eb off2": lambda d: F.embedding_bag(t(d, [0, 1, 2]), torch.ones(4, 3, device=d), t(d, [0, 7])),
    "int8 mask": lambda d: t(d, [1, 2], dtype=torch.int8).__setitem__(t(d, [True, False]), 300.5),
    "int8 set": lambda d: t(d, [1, 2], dtype=torch.int8).__setitem__(0, 300),
    "int8 //": lambda d: (t(d, [1, 2], dtype=torch.int8) // 3, t(d, [1, 2], dtype=torch.int8) // 2**40),
    "int8 +": lambda d: (t(d, [1, 2], dtype=torch.int8) + 3, t(d, [1, 2], dtype=torch.int8) + 2**40),
    "int8 ==": lambda d: (t(d, [1, 2], dtype=torch.int8) == 3, t(d, [1, 2], dtype=torch.int8) == 2**40),
    "int8 %": lambda d: (t(d, [1, 2], dtype=torch.int8) % 3, t(d, [1, 2], dtype=torch.int8) % 2**40),
    "int8 &": lambda d: (t(d, [1, 2], dtype=torch.int8) & 3, t(d, [1, 2], dtype=torch.int8) & 2**40),
    "int8 max": lambda d: (t(d, [1, 2], dtype=torch.int8).clamp(max=2**40),),
    "int8 add_": lambda d: t(d, [1, 2], dtype=torch.int8).add_(2**40),
    "int8 where": lambda d: torch.where(t(d, [True, False]), t(d, [1, 2], dtype=torch.int8), 2**40),
    "int8 0dim": lambda d: t(d, [1, 2], dtype=torch.int8) + torch.tensor(2**40),
    "rsub": lambda d: 2**40 - t(d, [1, 2], dtype=torch.int8),
    "nonzero out f": lambda d: torch.nonzero(t(d, [1, 2]), out=torch.empty(0, device=d)),
    "equal dt": lambda d: torch.equal(t(d, [1, 2]), t(d, [1.0, 2.0])),
    "equal shp": lambda d: torch.equal(t(d, [1, 2]), t(d, [1])),
    "bitand out": lambda d: torch.bitwise_and(t(d, [1, 2]), t(d, [1, 2]), out=torch.empty(2, device=d)),
    "bitor out": lambda d: torch.bitwise_or(t(d, [1, 2]), 1, out=torch.empty(2, device=d)),
    "logsumexp c0": lambda d: torch.logsumexp(torch.empty(0, 2, dtype=torch.complex64, device=d), 0),
    "logsumexp c0b": lambda d: torch.logsumexp(torch.empty(2, 0, dtype=torch.complex64, device=d), 0),
    "uint8 mask": lambda d: torch.arange(3, device=d)[t(d, [1, 0, 1], dtype=torch.uint8)],
    "index_put order": lambda d: torch.arange(3, device=d).index_put_((t(d, [0.5]),), t(d, [1.0])),
    "index_put order2": lambda d: torch.arange(3, device=d).index_put_((t(d, [7]),), t(d, [1.0])),
    "index_put order3": lambda d: torch.arange(3, device=d).index_put_((t(d, [True, False]),), t(d, [1.0])),
    "index_put order4": lambda d: torch.arange(3, device=d).index_put_((t(d, [0]), t(d, [0])), t(d, [1.0])),
    "index order5": lambda d: torch.arange(3, device=d)[t(d, [0]), t(d, [True])],
    "arange out strided": lambda d: with_base(
        torch.zeros(3, 2, dtype=torch.int64, device=d), lambda b: torch.arange(3, out=b[:, 0])
    ),
    "range out strided": lambda d: with_base(torch.zeros(3, 2, device=d), lambda b: torch.range(0, 2, out=b[:, 0])),
    "linspace out strided": lambda d: with_base(
        torch.zeros(3, 2, device=d), lambda b: torch.linspace(0, 2, 3, out=b[:, 0])
    ),
    "logspace out strided": lambda d: with_base(
        torch.zeros(3, 2, device=d), lambda b: torch.logspace(0, 2, 3, out=b[:, 0])
    ),
    "eye out strided": lambda d: with_base(torch.zeros(3, 3, 2, device=d), lambda b: torch.eye(3, out=b[..., 0])),
    "randperm out strided": lambda d: (lambda b: (torch.randperm(3, out=b[:, 0]).sort()[0], b[:, 1]))(
        torch.zeros(3, 2, dtype=torch.int64, device=d)
    ),
    "full out strided": lambda d: with_base(torch.zeros(3, 2, device=d), lambda b: torch.full((3,), 5.0, out=b[:, 0])),
    "ones out strided": lambda d: with_base(torch.zeros(3, 2, device=d), lambda b: torch.ones((3,), out=b[:, 0])),
    "linspace tt": lambda d: torch.linspace(t(d, 1.0), t(d, 2.0), 5, device=d),
    "linspace ts": lambda d: torch.linspace(t(d, 1.0), 2.0, 5, device=d),
    "linspace st": lambda d: torch.linspace(1.0, t(d, 2.0), 5, device=d),
    "logspace tt": lambda d: torch.logspace(t(d, 1.0), t(d, 2.0), 5, device=d),
    "linspace int": lambda d: [
        torch.linspace(a, b, n, device=d, dtype=dt)
        for a, b, n, dt in (
            (0, 10, 7, torch.int64),
            (-3, 8, 5, torch.int32),
            (-10, 10, 9, torch.int8),
            (0, 255, 13, torch.uint8),
            (0, 1000000, 77, torch.int64),
            (5, -6, 4, torch.int16),
            (0.5, 9.7, 6, torch.int64),
        )
    ],
    "logspace int": lambda d: [
        torch.logspace(a, b, n, device=d, dtype=dt) for a, b, n, dt in ((0, 3, 7, torch.int64), (0, 2, 5, torch.int32))
    ],
    "kaiser": lambda d: torch.kaiser_window(10, device=d),
    "rand c out": lambda d: torch.rand(3, out=torch.empty(3, dtype=torch.complex64, device=d)).shape,
    "randn c out": lambda d: torch.randn(3, out=torch.empty(3, dtype=torch.complex64, device=d)).shape,
    "rand int out": lambda d: torch.rand(3, out=torch.empty(3, dtype=torch.int64, device=d)).shape,
    **{
        f"rand like {dtype}, {of.__name__}": lambda d, dtype=dtype, of=of: of(t(d, [1.0, 2.0]), dtype=dtype).shape
        for dtype in (torch.int64, torch.uint8, torch.bool, torch.float16, torch.complex64)
        for of in (torch.rand_like, torch.randn_like)
    },
    **{
        f"rand like itself {of.__name__}": lambda d, of=of: of(torch.ones(0, dtype=torch.int32, device=d)).shape
        for of in (torch.rand_like, torch.randn_like)
    },
    **{
        f"randint like {ends} {dtype}": lambda d, ends=ends, dtype=dtype: torch.randint_like(
            torch.ones(3, device=d), *ends, dtype=dtype
        )
        for ends in ((10,), (5, 10), (-100,), (7, 7), (300,), (2,))
        for dtype in (torch.bool, torch.uint8, torch.float32)
    },
    "randint like nothing": lambda d: torch.randint_like(torch.ones(0, device=d), -100),
    **{
        f"rand dropout {dtype} {p}": lambda d, dtype=dtype, p=p: F.dropout(torch.ones(3, dtype=dtype, device=d), p)
        for dtype in (torch.int8, torch.bool, torch.float64)
        for p in (0.0, 0.3, 1.0)
    },
    "rand dropout not in training": lambda d: F.dropout(torch.ones(3, dtype=torch.int8, device=d), 0.3, False),
    **{
        f"unique_consecutive dim {shape} {dim}": lambda d, shape=shape, dim=dim: torch.unique_consecutive(
            torch.ones(shape, device=d), return_inverse=True, dim=dim
        )
        for shape in ((), (3,), (0,), (2, 3))
        for dim in (-3, -1, 0, 7)
    },
    **{
        f"repeat_interleave {counts} to {size}": lambda d, counts=counts, size=size: torch.repeat_interleave(
            torch.ones(2, 3, device=d), t(d, counts), 0, output_size=size
        )
        for counts, size in (([1, 2], 3), ([1, 2], -100), ([1, 2], 100), ([7, 7], 3), ([0, 0], 0))
    },
    **{
        f"segments {of} {counts} {dim} {axis}": lambda d, of=of, counts=counts, dim=dim, axis=axis: (
            torch.segment_reduce(
                torch.ones(4, 2, 2, device=d)[(0,) * (3 - dim)], "sum", axis=axis, **{of: t(d, counts)}
            )
        )
        for of, counts in (("offsets", [0, 2, 4]), ("offsets", [[0, 1, 2]] * 4), ("lengths", [1, 3]))
        for dim in (0, 1, 2, 3)
        for axis in (-2, 0, 1, 5)
    },
    "pow neg after": lambda d: (t(d, [1, 2]) ** 2, t(d, [1, 2]) ** -1),
    "pow neg t": lambda d: t(d, [1, 2]) ** t(d, [-1, 2]),
    "pow_ neg after": lambda d: (t(d, [1, 2]).pow_(2), t(d, [1, 2]).pow_(-1)),
    "pow s t": lambda d: torch.pow(2, t(d, [-1, 2])),
    "poisson neg": lambda d: torch.poisson(t(d, [1.0, -2.0])),
    "repeat_interleave float": lambda d: torch.repeat_interleave(t(d, [1.0, 2.0])),
    "repeat_interleave float none": lambda d: torch.repeat_interleave(torch.empty(0, device=d)),
    "repeat_interleave matrix": lambda d: torch.repeat_interleave(torch.ones(0, 2, device=d)),
    "repeat_interleave neg": lambda d: torch.repeat_interleave(t(d, [1, 2]), t(d, [1, -1])),
    "bincount neg": lambda d: torch.bincount(t(d, [1, -2])),
    "bincount": lambda d: torch.bincount(t(d, [1, 2])),
    "one_hot neg": lambda d: F.one_hot(t(d, [1, -2])),
    "ctc": lambda d: F.ctc_loss(torch.zeros(4, 1, 3, device=d), t(d, [[1, 2]]), t(d, [9]), t(d, [2])),
    "gather idx": lambda d: torch.gather(t(d, [1, 2]), 0, t(d, [5])),
    "masked_select dt": lambda d: torch.masked_select(t(d, [1, 2]), t(d, [5])),
    "take_along": lambda d: torch.take_along_dim(t(d, [1, 2]), t(d, [5]), 0),
    "max_unpool": lambda d: F.max_unpool2d(torch.ones(1, 1, 1, 1, device=d), t(d, [[[[9]]]]), 2),
    "scatter neg": lambda d: torch.zeros(3, device=d).scatter(0, t(d, [-1]), 1.0),
    "cholesky": lambda d: torch.linalg.cholesky(t(d, [[1.0, 2.0], [2.0, 1.0]])),
    "inv": lambda d: torch.linalg.inv(t(d, [[1.0, 1.0], [1.0, 1.0]])),
    "cross_entropy prob": lambda d: F.cross_entropy(t(d, [[1.0, 2.0]]), t(d, [7])),
    "fill inf int": lambda d: t(d, [1, 2]).fill_(float("inf")),
    "item inf int": lambda d: t(d, [1, 2]).__setitem__(0, float("inf")),
    "lerp": lambda d: torch.lerp(t(d, [1, 2]), t(d, [1, 2]), 0.5),
    "heaviside": lambda d: torch.heaviside(t(d, [1.0, 2.0]), t(d, [1, 2])),
    "cumprod out": lambda d: torch.cumprod(t(d, [1, 2, 3]), 0, out=torch.empty(3, dtype=torch.int8, device=d)),
}
RANDOM = ("rand", "normal", "bernoulli")


@pytest.mark.parametrize("name", CALLS)
def test_is_answered_as_by_the_cpu(name):
    def run(device):
        result = CALLS[name](device)
        tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, result)  # what is refused late is refused too
        return result

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (want, refused), (found, refusal) = attempt(lambda: run("cpu")), attempt(lambda: run(DEVICE))
    compare_errors(refused, refusal)
    if refused is None:
        compare_results(want, found, DEVICE, values=not name.startswith(RANDOM))


def test_indices_without_a_bag_do_not_end_the_process():
    table, indices = torch.ones(5, 3, device=DEVICE), torch.tensor([0, 1, 2], device=DEVICE)
    none = torch.empty(0, dtype=torch.long, device=DEVICE)
    with pytest.raises(RuntimeError, match="no bag"):
        torch.nn.functional.embedding_bag(indices, table, none, mode="max")
    assert torch.nn.functional.embedding_bag(indices, table, none, mode="sum").shape == (0, 3)


def test_what_is_reduced_over_nothing_is_refused():
    def segments(device):
        return torch.segment_reduce(t(device, [1.0] * 5), "max", lengths=t(device, [], dtype=torch.long), axis=0)

    def too_short(device):
        return torch.segment_reduce(t(device, [1.0] * 5), "sum", lengths=t(device, [1, 2]), axis=0)

    def losses(device):
        log_probs = torch.zeros(5, 0, 4, device=device)
        none = torch.zeros(0, dtype=torch.long)
        return F.ctc_loss(log_probs, torch.zeros(0, 3, dtype=torch.long, device=device), none, none)

    for call in (segments, too_short, losses):
        want, found = (attempt(lambda device=device, call=call: call(device))[1] for device in ("cpu", DEVICE))
        assert want is not None
        compare_errors(want, found)
    repeats = torch.empty(0, dtype=torch.long)
    kept = torch.repeat_interleave(torch.empty(0, 1, device=DEVICE), repeats.to(DEVICE), dim=0, output_size=6)
    assert kept.shape == torch.repeat_interleave(torch.empty(0, 1), repeats, dim=0, output_size=6).shape
