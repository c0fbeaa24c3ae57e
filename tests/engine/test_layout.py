"""Where the buffers of a program lie: which slot every operand has, and which blocks temporaries share."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from tinygrad import dtypes
from tinygrad.uop.ops import Ops, UOp

from torch_tinygrad.engine.layout import ARENA, INPUT, MADE, OUTPUT, TAKEN, lay_out, outermost
from torch_tinygrad.engine.order import Call


def buffer(size: int) -> UOp:
    return UOp.new_buffer("CPU", size, dtypes.float32)


@dataclass
class Program:
    """A schedule of calls on buffers, as `lay_out` sees one."""

    inputs: dict[UOp, int] = field(default_factory=dict)
    outputs: dict[UOp, int] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    inside: dict[UOp, tuple[UOp, int]] = field(default_factory=dict)
    nbytes: int = 400  # of each storage

    def call(self, writes: UOp, *reads: UOp) -> None:
        function = UOp(Ops.CUSTOM_FUNCTION, src=(), arg=f"call {len(self.calls)}")
        self.calls.append(Call(function.call(writes, *reads), set(reads), {writes}))

    @property
    def graph(self):
        numbers = (*self.inputs.values(), *self.outputs.values())
        storages = {number: SimpleNamespace(storage=SimpleNamespace(nbytes=self.nbytes)) for number in numbers}
        space = SimpleNamespace(inside=self.inside)
        return SimpleNamespace(space=space, flats=storages, float_input=None, int_input=None)


def slots(program: Program, **options) -> list[list[tuple[int, int, int]]]:
    return [[tuple(operand.slot) for operand in operands] for _, operands in lay_out(program, **options).calls]


@pytest.fixture
def chain() -> Program:
    """An input through three temporaries into an output: each is read once."""
    read, first, second, third, result = (buffer(100) for _ in range(5))
    program = Program({read: 7}, {result: 8})
    for written, given in ((first, read), (second, first), (third, second), (result, third)):
        program.call(written, given)
    return program


def test_inputs_and_outputs_are_numbered_and_temporaries_lie_in_one_arena(chain):
    assert slots(chain) == [
        [(ARENA, 0, 0), (INPUT, 0, 0)],
        [(ARENA, 0, 448), (ARENA, 0, 0)],
        [(ARENA, 0, 0), (ARENA, 0, 448)],
        [(OUTPUT, 0, 0), (ARENA, 0, 0)],
    ]
    layout = lay_out(chain)
    assert (layout.inputs, layout.outputs, layout.written) == ([7], [8], [])
    assert layout.temporaries == [896]  # two of 400 bytes at a time, at multiples of 64


def test_temporaries_lie_in_results_to_come_and_in_what_is_no_longer_needed(chain):
    assert [operands[0] for operands in slots(chain, free={7})] == [
        (OUTPUT, 0, 0),
        (TAKEN, 0, 0),  # the input was read by the call before
        (ARENA, 0, 0),  # a call never reads and writes the same place
        (OUTPUT, 0, 0),
    ]
    layout = lay_out(chain, free={7})
    assert layout.taken == [(0, 400)] and layout.temporaries == [448]


def test_what_is_too_small_takes_in_no_temporary(chain):
    chain.nbytes = 396
    layout = lay_out(chain, free={7})
    assert [operands[0].slot.kind for _, operands in layout.calls] == [ARENA, ARENA, ARENA, OUTPUT]


def test_without_views_a_temporary_has_a_block_of_its_own(chain):
    numbers = [operands[0][:2] for operands in slots(chain, views=False)]
    assert numbers == [(ARENA, 0), (ARENA, 1), (ARENA, 0), (OUTPUT, 0)]
    assert lay_out(chain, views=False).temporaries == [400, 400]


def test_what_is_written_in_place_is_said(chain):
    (read,) = chain.inputs
    chain.call(read, next(iter(chain.outputs)))
    assert lay_out(chain).written == [0]


def test_made_buffers_are_let_go_after_their_last_reader(chain):
    first = next(iter(chain.calls[0].writes))
    layout = lay_out(chain, made=[first])
    assert layout.calls[0][1][0].slot == (MADE, 0, 0)
    assert layout.releases == [[], [0], [], []]


def test_a_made_buffer_that_is_an_output_is_adopted(chain):
    (result,) = chain.outputs
    layout = lay_out(chain, made=[result])
    assert layout.adopted == [(8, 0)] and layout.outputs == [] and layout.releases == [[]] * 4


def test_a_part_lies_in_its_whole():
    whole, middle, part = buffer(100), buffer(50), buffer(10)
    inside = {part: (middle, 80), middle: (whole, 120)}
    assert outermost(part, 4, inside) == (whole, 204)
    program = Program({whole: 0}, {}, inside=inside)
    program.call(part, whole)
    assert slots(program) == [[(INPUT, 0, 200), (INPUT, 0, 0)]]


def test_an_input_that_no_call_uses_is_none(chain):
    chain.inputs[buffer(4)] = 9
    assert lay_out(chain).inputs == [7]
