"""Trace passes keep what every live storage holds: programs are recorded by hand, executed on flat CPU buffers before
and after a pass, and compared.
"""

import random
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_tinygrad.trace.coalesce import drop_dead, forward_copies
from torch_tinygrad.trace.nodes import Lifted, Node, Number, Region, Storage, Trace
from torch_tinygrad.trace.reroll import reroll

F64 = torch.float64


class Program:
    """Records nodes as the recorder would: tensors are regions, every operator makes a temporary."""

    def __init__(self):
        self.trace = Trace([], [], [])

    def storage(self, numel, has_value=True, live=True, dtype=F64):
        self.trace.storages.append(Storage(numel * dtype.itemsize, has_value, live))
        return len(self.trace.storages) - 1

    def tensor(self, *size, dtype=F64, **kind):
        numel = torch.Size(size).numel()
        stride = torch.empty(size, device="meta").stride()
        return View(self, Region(self.storage(numel, dtype=dtype, **kind), dtype, size, stride, 0))

    def number(self, value):
        self.trace.numbers.append(value)
        return Number(value, len(self.trace.numbers) - 1)

    def arg(self, value):
        return value.region if isinstance(value, View) else self.number(value)

    def op(self, name, *args, out=None):
        args = tuple(self.arg(a) for a in args)
        if out is None:
            sizes = [a.size for a in args if isinstance(a, Region)]
            out = self.tensor(*torch.broadcast_shapes(*sizes), has_value=False, live=False)
        self.trace.nodes.append(Node(name, args, (out.region,)))
        return out

    def scalar(self, value):
        out = self.tensor(has_value=False, live=False)
        return self.op("aten::fill.Scalar", out, value, out=out)


class View:
    def __init__(self, program, region):
        self.program, self.region = program, region

    def _view(self, function):
        r = self.region
        view = function(torch.empty(0, device="meta").as_strided(r.size, r.stride, r.offset))
        return View(self.program, r.at(size=tuple(view.shape), stride=view.stride(), offset=view.storage_offset()))

    def __getitem__(self, index):
        return self._view(lambda t: t[index])

    def t(self):
        return self._view(lambda t: t.t())

    def __setitem__(self, index, value):
        target = self[index] if index is not Ellipsis else self
        if not isinstance(value, View):
            value = self.program.scalar(value)
        self.program.op("aten::copy", target, value, out=target)

    def __mul__(self, other):
        return self.program.op("aten::mul.Tensor", self, other)

    def __add__(self, other):
        return self.program.op("aten::add.Tensor", self, other)

    def add_(self, other):
        self.program.op("aten::add.Tensor", self, other, out=self)

    def mul_(self, other):
        self.program.op("aten::mul.Tensor", self, other, out=self)


def run(trace):
    """What the live storages hold after the trace, executed node by node."""
    generator = torch.Generator().manual_seed(0)
    buffers = []
    for storage in trace.storages:
        data = torch.randn(storage.nbytes // 8, generator=generator, dtype=F64)
        buffers.append(data if storage.has_value else torch.full_like(data, 7.25))

    def elements(region):
        index = torch.full((), region.offset)
        for size, stride in zip(region.size, region.stride, strict=True):
            index = index.unsqueeze(-1) + torch.arange(size) * stride
        return index

    def value(arg):
        if isinstance(arg, Region):
            index = elements(arg)
            assert not index.numel() or 0 <= index.min() <= index.max() < len(buffers[arg.storage]), arg
            return buffers[arg.storage][index]
        if isinstance(arg, Lifted):
            index = elements(Region(0, F64, arg.size, arg.step, arg.position))
            kind = float if arg.is_float else int
            assert all(isinstance(trace.numbers[i], kind) for i in index.flatten().tolist())
            return torch.tensor(trace.numbers, dtype=F64)[index]
        return arg.value if isinstance(arg, Number) else arg

    compute = {
        "aten::add.Tensor": torch.add,
        "aten::mul.Tensor": torch.mul,
        "aten::sum": lambda x: x.sum(),
        "aten::copy": lambda _, source, *__: source,
        "aten::fill.Scalar": lambda _, number: torch.as_tensor(number, dtype=F64),
        "aten::full": lambda size, number: torch.full(size, number, dtype=F64),
        "aten::zeros": lambda size: torch.zeros(size, dtype=F64),
    }
    for node in trace.nodes:
        (out,) = node.outs
        index = elements(out)
        assert index.unique().numel() == index.numel(), f"{node} writes an element twice"
        result = compute[node.op](*map(value, node.args))
        loose = node.op in ("aten::copy", "aten::fill.Scalar")
        assert loose or tuple(result.shape) == out.size, node
        buffers[out.storage][index] = result.expand(out.size)
    return [b if s.live else None for b, s in zip(buffers, trace.storages, strict=True)]


def check(trace, after):
    assert len(after.storages) == len(trace.storages)
    for before, now in zip(run(trace), run(after), strict=True):
        if before is not None:
            torch.testing.assert_close(now, before, rtol=0, atol=0, equal_nan=True)


def rerolled(program, nodes=None):
    after = reroll(program.trace)
    check(program.trace, after)
    check(program.trace, reroll(drop_dead(program.trace)))
    if nodes is not None:
        assert len(after.nodes) == nodes, "\n".join(map(str, after.nodes))
    return after


def loop_of_numbers(p, n):
    a = p.tensor(n)
    for i in range(n):
        a[i] = i


def loop_with_expression(p, n):
    a, b = p.tensor(n), p.tensor(n)
    for i in range(n):
        a[i] = b[i] * 2 + i


def reversed_loop(p, n):
    a, b = p.tensor(n), p.tensor(n)
    for i in reversed(range(n)):
        a[i] = b[n - 1 - i] * 0.5


def loop_with_step(p, n):
    a = p.tensor(3 * n + 2)
    for i in range(1, 3 * n, 3):
        a[i] = a[i + 1] * i


def columns_of_a_transpose(p, n):
    m, x = p.tensor(5, n), p.tensor(5)
    for i in range(n):
        m.t()[i] = x * i


def two_tensors_in_turn(p, n):
    a, b, x = p.tensor(n), p.tensor(n, 2), p.tensor(2)
    for i in range(n):
        a[i] = i
        b[i] = x * float(i)


def increments(p, n):
    a, b = p.tensor(n, 3), p.tensor(n, 3)
    for i in range(n):
        a[i].add_(b[i])


def shift_down(p, n):
    a = p.tensor(n + 1)
    for i in range(n):
        a[i] = a[i + 1]


def uses_what_the_last_iteration_left(p, n):
    a, b = p.tensor(n + 1), p.tensor(n + 1)
    for i in range(1, n + 1):
        a[i] = i
        b[i] = a[i - 1] * 3


def broadcast_row(p, n):
    m, row, scale = p.tensor(n, 4, 3), p.tensor(3), p.tensor(n)
    for i in range(n):
        m[i] = row * scale[i]


def dead_accumulator(p, n):
    a, out = p.tensor(n, has_value=False, live=False), p.tensor(n)
    for i in range(n):
        a[i] = i
    out[...] = a * 2


def into_one_place(p, n):
    a, b = p.tensor(3), p.tensor(n, 3)
    for i in range(n):
        a[...] = b[i] * i


def factories(p, n):
    a = p.tensor(n, 2)
    for i in range(n):
        t = p.tensor(2, has_value=False, live=False)
        p.trace.nodes.append(Node("aten::full", ([2], p.number(float(i))), (t.region,)))
        z = p.tensor(2, has_value=False, live=False)
        p.trace.nodes.append(Node("aten::zeros", ([2],), (z.region,)))
        a[i] = t + z


@pytest.mark.parametrize(
    "program, nodes",
    [
        (loop_of_numbers, 2),
        (loop_with_expression, 3),
        (reversed_loop, 2),
        (loop_with_step, 2),
        (columns_of_a_transpose, 2),
        (two_tensors_in_turn, 4),
        (increments, 1),
        (shift_down, 1),
        (uses_what_the_last_iteration_left, 4),
        (broadcast_row, 2),
        (dead_accumulator, 4),
        (into_one_place, 2),
        (factories, 4),
    ],
)
@pytest.mark.parametrize("n", [3, 10, 57])
def test_loop_becomes_one_group(program, nodes, n):
    p = Program()
    program(p, n)
    rerolled(p, nodes)


@pytest.mark.parametrize("width", [7, 8])
def test_nested_loops_become_one_group(width):
    p = Program()
    m = p.tensor(9, 8)
    for i in range(5):
        for j in range(8 - width, 8):
            m[i + 2, j] = i * j + 1
    rerolled(p, 2)


def test_three_nested_loops():
    p = Program()
    m, x = p.tensor(5, 6, 7), p.tensor(5, 6, 7)
    for i in range(4):
        for j in range(4):
            for k in range(5):
                m[i, j, k] = x[i, j, k + 1] * (i + j) + k
    rerolled(p, 3)


@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_overlapping_windows_keep_the_last_write(step):
    p = Program()
    n = 12
    a, x = p.tensor(60), p.tensor(3)
    for i in range(n):
        a[24 + step * i : 27 + step * i] = x * i
    rerolled(p, 3)


def test_overlapping_blocks_keep_the_last_write():
    p = Program()
    m, x = p.tensor(12, 6), p.tensor(3, 4)
    for i in range(8):
        m[i : i + 3, 1:5] = x * i
    rerolled(p, 3)


def test_recurrence_is_left_alone():
    p = Program()
    a, b = p.tensor(50), p.tensor(50)
    for i in range(1, 50):
        a[i] = a[i - 1] * 0.5 + b[i]
    assert rerolled(p).nodes == p.trace.nodes


def test_accumulation_is_left_alone():
    p = Program()
    a, b = p.tensor(), p.tensor(50)
    for i in range(50):
        a.add_(b[i])
    assert rerolled(p).nodes == p.trace.nodes


def test_chain_of_temporaries_is_left_alone():
    p = Program()
    a, x = p.tensor(3), p.tensor(3)
    for _ in range(20):
        x = x * 0.5
    a[...] = x
    assert rerolled(p).nodes == p.trace.nodes


def test_far_recurrence_is_batched_in_pieces():
    p = Program()
    m = p.tensor(6, 20)
    for i in range(1, 6):
        for j in range(20):
            m[i, j] = m[i - 1, j] * 2
    rerolled(p, 10)


def test_scratch_reused_by_iterations_is_left_alone():
    p = Program()
    a, scratch = p.tensor(20), p.tensor(1)
    for i in range(20):
        scratch[0] = i
        a[i] = scratch[0] * 2
    rerolled(p)


def test_numbers_that_may_not_be_lifted():
    p = Program()
    loop_with_expression(p, 10)
    assert reroll(p.trace, can_lift=lambda op, argument: False).nodes == p.trace.nodes
    q = Program()
    a, b = q.tensor(10), q.tensor(10)
    for i in range(10):
        a[i] = b[i] * 2
    constant = reroll(q.trace, can_lift=lambda op, argument: False)
    assert len(constant.nodes) == 2 and isinstance(constant.nodes[0].args[1], Number)


def test_lifted_numbers_gain_a_dimension():
    p = Program()
    loop_of_numbers(p, 6)
    p.trace.nodes = [
        Node(n.op, tuple(Lifted(a.position, False) if isinstance(a, Number) else a for a in n.args), n.outs)
        for n in p.trace.nodes
    ]
    fill = rerolled(p, 2).nodes[0]
    assert fill.args[1] == Lifted(0, False, (6,), (1,))


def test_zero_dim_operands_of_another_dtype_stay_weak():
    p = Program()
    a, b = p.tensor(10, 2), p.tensor(10, 2)
    scale = p.tensor(10, dtype=torch.int64)
    for i in range(10):
        p.op("aten::mul.Tensor", b[i], scale[i], out=a[i])
    assert reroll(p.trace).nodes == p.trace.nodes


def test_code_around_loops_stays():
    p = Program()
    a, s = p.tensor(10), p.tensor()
    a.mul_(3)
    for i in range(10):
        a[i] = a[i] + i
    p.op("aten::sum", a, out=s)
    for i in range(10):
        a[i] = s * a[i]
    rerolled(p, 1 + 2 + 1 + 2)


def test_overwritten_and_forgotten_writes_are_dropped():
    p = Program()
    a, b, x = p.tensor(4, 4), p.tensor(4), p.tensor(4)
    a[0] = x * 2
    a[:, 1] = x
    forgotten = x * 3
    forgotten * 4
    a[:, 1] = x * 5
    b[...] = a[0]
    a[0:2] = x * 6
    after = drop_dead(p.trace)
    check(p.trace, after)
    assert len(after.nodes) == len(p.trace.nodes) - 3


def test_unneeded_results_of_a_needed_node_are_none():
    p = Program()
    a, forgotten = p.tensor(4), p.tensor(4, has_value=False, live=False)
    p.trace.nodes.append(Node("aten::frexp.Tensor", (a.region,), (a.region, forgotten.region)))
    assert drop_dead(p.trace).nodes[0].outs == (a.region, None)


def test_a_read_between_keeps_a_write():
    p = Program()
    a, b = p.tensor(8), p.tensor(3)
    a[0:8:2] = 1.0
    b[...] = a[2:5]
    a[0:8:2] = 2.0
    assert drop_dead(p.trace).nodes == p.trace.nodes


def test_copies_of_temporaries_are_written_at_once():
    p = Program()
    a, x = p.tensor(9, 4), p.tensor(4)
    for i in range(9):
        a[i] = i
        a[i, 1:3] = x[1:3] * 2 + i
    kept = x * 3
    a[0] = kept
    a[1] = kept
    after = forward_copies(p.trace)
    check(p.trace, after)
    assert len(after.nodes) == 9 * 3 + 3
    check(p.trace, reroll(after))
    assert len(reroll(after).nodes) == 3 + 3


def test_a_copy_that_converts_stays():
    p = Program()
    a, x = p.tensor(4), p.tensor(4)
    whole = p.tensor(4, has_value=False, live=False, dtype=torch.int64)
    p.op("aten::mul.Tensor", x, 2, out=whole)
    a[...] = whole
    assert forward_copies(p.trace).nodes == p.trace.nodes


def test_a_tensor_that_arrived_as_a_number_is_a_fill():
    p = Program()
    a = p.tensor(12)
    for i in range(12):
        p.op("aten::copy", a[i], float(i), out=a[i])
    (fill,) = reroll(p.trace).nodes
    assert fill.op == "aten::fill.Scalar" and fill.args[1] == Lifted(0, True, (12,), (1,))


@st.composite
def programs(draw):
    """Loops of random affine statements over a few tensors, straight-line statements between them."""
    p = Program()
    rng = random.Random(draw(st.integers(0, 2**32)))
    tensors = [p.tensor(24), p.tensor(6, 8), p.tensor(40, has_value=False, live=False)]
    flat = [View(p, t.region.at(size=(t.region.numel,), stride=(1,))) for t in tensors]

    def place(start, step, length, i, target):
        # Windows wrap as a whole, so that some loops advance evenly and some jump.
        limit = target.region.numel - 1 - length * 2
        at = (start + step * i) % (limit + 1)
        return target[at : at + length * stride : stride] if length else target[at]

    for _ in range(draw(st.integers(1, 3))):
        stride = rng.choice([1, 1, 2])
        length = rng.choice([0, 0, 1, 3])
        shapes = [
            [(rng.randint(0, 12), rng.choice([-2, -1, 0, 1, 1, 1, 2, 3]), rng.randrange(3)) for _ in range(3)]
            for _ in range(rng.randint(1, 3))
        ]
        kinds = [rng.choice(["copy", "add", "add_", "number", "scale"]) for _ in shapes]
        for i in range(draw(st.integers(1, 9))):
            for kind, operands in zip(kinds, shapes, strict=True):
                out, x, y = (place(start, step, length, i, flat[which]) for start, step, which in operands)
                if kind == "copy":
                    out[...] = x
                elif kind == "add":
                    out[...] = x + y
                elif kind == "add_":
                    out.add_(x)
                elif kind == "number":
                    out[...] = float(i * operands[0][0])
                else:
                    out[...] = x * (i + 1) + y
    return p


@settings(max_examples=400, deadline=None)
@given(programs())
def test_random_programs_keep_their_values(p):
    rerolled(p)
    check(p.trace, drop_dead(p.trace))
    check(p.trace, drop_dead(reroll(p.trace)))
    check(p.trace, forward_copies(p.trace))
    check(p.trace, reroll(forward_copies(drop_dead(p.trace))))


def calls_in(function, *arguments) -> int:
    """How many calls of Python functions it takes: work that no clock disturbs."""
    count = 0

    def see(frame, event, argument):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("passed", [reroll, drop_dead])
@pytest.mark.parametrize("program", [loop_with_expression, two_tensors_in_turn, uses_what_the_last_iteration_left])
def test_work_is_linear_in_the_length_of_a_loop(program, passed):
    work = []
    for length in (1000, 4000):
        p = Program()
        program(p, length)
        work.append(calls_in(passed, p.trace))
        assert passed is not reroll or len(reroll(p.trace).nodes) < 10
    assert work[1] <= 4.2 * work[0]


def test_work_is_bounded_where_loops_fail():
    work = []
    for length in (16_000, 30_000):
        p = Program()
        a = p.tensor(2 * length)
        rng = random.Random(0)
        for i in range(2, length):
            a[i].mul_(0.5) if rng.random() < 0.05 else a[i].add_(a[i - 1])
        work.append(calls_in(reroll, p.trace))
    assert work[1] <= 1.2 * work[0]
