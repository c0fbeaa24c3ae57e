"""What goes wrong in tinygrad without its corrections, where no other test is about it."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F
from tinygrad import codegen, dtypes
from tinygrad.dtype import Invalid
from tinygrad.schedule import rangeify
from tinygrad.uop.ops import Ops, ParamArg, ProgramInfo, UOp, graph_rewrite
from tinygrad.uop.symbolic import pm_data_invalid, sym

from tests.differential import DEVICE, both, data


def lines_run(action) -> int:
    """Lines of Python that it takes."""
    count = 0

    def count_line(frame, event, arg):
        nonlocal count
        count += event == "line"
        return count_line

    before = sys.gettrace()
    sys.settrace(count_line)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def chain(length: int, name: int = 0) -> list[UOp]:
    """Values each of which is made of the one before."""
    made = [UOp.variable(f"start{name}", 0, 10)]
    for number in range(length):
        made.append(made[-1] * 2 + number)
    return made


def test_products_and_sums_are_rounded_apart():
    def program(device):
        x = (1 + torch.arange(1, 9) * 2.0**-12).to(device)
        y = x * x
        yield
        z = x * x - y  # nothing, unless the product is not rounded
        yield
        z = z + y
        yield

    both(program, schedules=("stepwise",), rtol=0, atol=0)


def test_what_a_lowering_rounds_once_is_rounded_once():
    def program(device):
        x, y = (1 + torch.arange(1, 9) * 2.0**-12).to(device), (-(1 + torch.arange(1, 9) * 2.0**-11)).to(device)
        return torch.addcmul(y, x, x)

    both(program, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32], ids=str)
def test_numbers_beside_loaded_ones_keep_their_values(dtype):
    both(lambda device: F.pad(torch.tensor([1, 0, 1]).to(dtype).to(device).float(), (2, 1), value=300.5) * 2)


def test_a_number_that_may_be_nan_has_no_bounds():
    numbers = UOp(Ops.STACK, src=tuple(UOp.const(number, dtypes.float32) for number in (5.0, float("nan"))))
    one_of_them = numbers.index(UOp.variable("which", 0, 1))
    assert (one_of_them < 7.0).simplify().op is not Ops.CONST


def test_negative_numbers_are_written_in_brackets():
    """Without brackets `x--y` is no C, and `--x` decrements."""
    both(lambda device: data(2, device=device) - (-data(2, seed=1, device=device)))
    both(lambda device: data(2, device=device).neg().neg())


def test_vectors_of_invalid_lanes_keep_their_shape():
    lanes = UOp.stack(*[UOp.const(Invalid, dtypes.float32)] * 2)
    assert graph_rewrite(lanes, codegen.symbolic_simple).shape == lanes.shape


@pytest.mark.parametrize("invalid_if", [True, False])
def test_choices_by_data_make_nothing_invalid(invalid_if):
    """Of places from 2 on the data are not wanted: what is known of them later, that they are invalid there, is nothing
    to the number that stands there."""
    at = UOp.variable("at", 0, 3)
    read, gated = (UOp.new_buffer("CPU", 4, dtypes.bool).index(at).load() for _ in range(2))
    partly, other, there = (UOp.const(number, dtypes.float32) for number in (1.0, 2.0, 3.0))
    partly = partly.valid(at < 1)
    chosen = read.where(partly, other) if invalid_if else read.where(other, partly)
    rewritten = graph_rewrite((at < 2).where(chosen, there), pm_data_invalid)
    rewritten = graph_rewrite(rewritten.substitute({read: gated.valid(at < 2)}), pm_data_invalid)
    assert graph_rewrite(rewritten.substitute({at: at.const_like(3)}), sym).arg == 3.0


def test_what_was_stored_before_is_not_dropped():
    """Adding nothing stores what is there, once it is there: a sum's variable begins with 0."""
    variable = UOp.new_buffer("CPU", 1, dtypes.float32)
    begins = variable.index(UOp.const(0)).store(UOp.const(0.0, dtypes.float32))
    total = variable.after(begins).index(UOp.const(0))
    assert begins in graph_rewrite(total.store(total.load()), codegen.sym).backward_slice_with_self


def test_what_a_value_is_made_of_is_known_once():
    def ask(values: list[UOp]) -> int:
        return lines_run(lambda: [value.op_in_backward_slice_with_self(Ops.LOAD) for value in values])

    short, long = ask(chain(50, 1)), ask(chain(200, 2))
    assert long < 8 * short


def test_conditions_of_what_loads_are_not_kept():
    buffer = UOp.new_buffer("CPU", 4, dtypes.int32)
    value = buffer.index(UOp.variable("at", 0, 3)).load()
    for number in range(3):
        value = (value < number).where(value, value + 1)
    assert value.bool_slice == frozenset()


def test_a_threads_number_is_never_taken_for_a_buffer():
    """The second of three buffers is not needed: the thread's number is none of theirs."""
    first, last, thread = (UOp(Ops.PARAM, arg=ParamArg(slot, dtypes.int32)) for slot in (0, 2, -1))
    numbered = codegen.pm_number_params.rewrite(UOp.sink(first, last, thread))
    assert [u.arg.slot for u in numbered.src] == [0, 2, 3]


def test_arguments_are_numbered_as_they_are_passed():
    used = tuple(UOp.param(slot, dtypes.float32, (4,), "CPU") for slot in (0, 2))
    info = ProgramInfo("kernel", (1,), (1,), (), (0, 2), (0,), (2,))
    parts = (UOp(Ops.SINK), UOp(Ops.LINEAR, src=used), UOp(Ops.SOURCE, arg=""), UOp(Ops.BINARY, arg=b""))
    signature = UOp(Ops.PROGRAM, src=parts, arg=info).to_elf().signature
    assert [number for _, number, *_ in signature] == [0, 1]


def test_stores_look_at_what_their_own_kernel_reads():
    """The transposed values were stored by another kernel: they can be overwritten."""
    ours, theirs = (UOp.new_buffer("CPU", 16, dtypes.float32).reshape((4, 4)) for _ in range(2))
    stored = theirs.after(theirs.store(ours.permute((1, 0))))
    rewritten = rangeify.earliest_rewrites.rewrite(ours.store(stored + 1))
    assert rewritten is None or not rewritten.op_in_backward_slice_with_self(Ops.CONTIGUOUS)


def test_floats_without_an_integer_end_no_loop():
    """The rows around the one that is written are powers of zero, whose logarithm is infinite: a loop over them begins
    with what C does not define, and the loop before it had no end."""
    with torch.tiny.compile_mode("always"):
        base, power = (torch.arange(1.0, 8) * n for n in (15.7, 1.001))
        rows = torch.zeros(3, 7, dtype=torch.bfloat16, device=DEVICE)
        rows[1] = base.to(DEVICE)
        rows[1].pow_(power.to(DEVICE))
        expected = torch.zeros(3, 7, dtype=torch.bfloat16)
        expected[1] = base
        expected[1].pow_(power)
        assert rows.tolist() == expected.tolist()
