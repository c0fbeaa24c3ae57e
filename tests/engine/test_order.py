"""The order of calls: whoever uses a buffer's older version runs before the writer of the next, and temporaries live
as short as they can."""

from __future__ import annotations

import itertools
import random

import pytest
from tinygrad import dtypes
from tinygrad.uop.ops import UOp

from torch_tinygrad.engine.order import Call, Cycle, dependencies, in_order


def buffers(*sizes: int) -> list[UOp]:
    return [UOp.new_buffer("CPU", size, dtypes.float32) for size in sizes]


def call(reads=(), writes=()) -> Call:
    return Call(UOp.const(0), set(reads), set(writes))


def test_readers_follow_the_writer_and_precede_the_next():
    a, b, c = buffers(4, 4, 4)
    calls = [call([], [a]), call([a], [b]), call([a], [c]), call([], [a]), call([a], [])]
    assert dependencies(calls, {}) == [set(), {0}, {0}, {0, 1, 2}, {3}]


def test_who_writes_a_version_waits_for_all_users_of_those_before():
    first, second, result = buffers(4, 4, 4)
    calls = [call([first], [second]), call([first], [result])]
    assert dependencies(calls, {second: [first]}) == [{1}, set()]


def test_reading_what_oneself_writes_is_no_reason_to_wait():
    a = buffers(4)[0]
    assert dependencies([call([a], [a])], {a: []}) == [set()]


def test_two_writes_that_each_want_to_be_last_are_refused():
    calls = [call(), call()]
    with pytest.raises(Cycle):
        in_order(calls, [{1}, {0}], set())


def test_what_frees_memory_comes_before_what_takes_it():
    large, larger, result, other = buffers(1000, 2000, 1, 1)
    calls = [call([], [large]), call([], [larger]), call([large], [result]), call([larger], [other])]
    order, _ = in_order(calls, dependencies(calls, {}), {result, other})
    assert [calls.index(one) for one in order] in ([0, 2, 1, 3], [1, 3, 0, 2])


@pytest.mark.parametrize("seed", range(20))
def test_every_call_comes_once_and_after_those_it_must_follow(seed):
    chance = random.Random(seed)
    names = buffers(*(chance.randrange(1, 100) for _ in range(8)))
    calls = [call(chance.sample(names, 2), chance.sample(names, 1)) for _ in range(30)]
    before = dependencies(calls, {})
    ordered, moved = in_order(calls, before, set(chance.sample(names, 3)))
    turn = {id(one): i for i, one in enumerate(ordered)}
    assert len(turn) == len(calls)
    for one, mine in zip(calls, before, strict=True):
        assert {turn[id(calls[j])] for j in mine} == moved[turn[id(one)]]
        assert all(j < turn[id(one)] for j in moved[turn[id(one)]])
    for one, other in itertools.combinations(range(len(calls)), 2):
        if calls[one].writes & (calls[other].reads | calls[other].writes):
            assert turn[id(calls[one])] < turn[id(calls[other])]
