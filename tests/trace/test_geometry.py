"""Movement plans and set questions about strided regions, against numpy's as_strided and enumerated elements."""

import itertools
import random

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import as_strided

from torch_tinygrad.trace.geometry import (
    contains_exactly_same,
    covers,
    extent,
    is_contiguous,
    meets_itself,
    overlaps,
    read_plan,
    write_plan,
)
from torch_tinygrad.trace.nodes import Region


def apply(array, steps):
    for kind, argument in steps:
        if kind == "reshape":
            array = array.reshape(argument)
        elif kind == "shrink":
            assert all(0 <= lo <= hi <= z for (lo, hi), z in zip(argument, array.shape, strict=True))
            array = array[tuple(slice(lo, hi) for lo, hi in argument)]
        elif kind == "pad":
            assert min(itertools.chain(*argument)) >= 0
            array = np.pad(array, argument)
        elif kind == "permute":
            array = array.transpose(argument)
        elif kind == "expand":
            assert all(old in (1, new) for old, new in zip(array.shape, argument, strict=True))
            array = np.broadcast_to(array, argument)
        elif kind == "flip":
            array = np.flip(array, argument)
        else:
            raise AssertionError(kind)
    return array


def elements(size, stride, offset):
    return [
        offset + sum(i * s for i, s in zip(index, stride, strict=True))
        for index in itertools.product(*map(range, size))
    ]


def view(flat, size, stride, offset):
    return as_strided(flat[offset:], size, [s * flat.itemsize for s in stride])


def random_nested(rng):
    """(n, size, stride, offset): strides nest; any order, with size-1, stride-0 and negative dimensions mixed in."""
    dims, inner = [], 1
    for _ in range(rng.randint(0, 4)):
        z, s = rng.randint(2, 4), inner + rng.choice([0, 0, 0, 1, 2, 3])
        if rng.random() < 0.5 and dims:
            s = max(s, dims[-1][0] * dims[-1][1])
        dims.append((z, s))
        inner += (z - 1) * s
    offset = rng.choice([0, 0, rng.randint(0, 7)])
    n = offset + inner + rng.choice([0, 0, rng.randint(0, 9)])
    if dims and rng.random() < 0.4:
        n = -(-n // dims[-1][1]) * dims[-1][1]
    dims.reverse()
    if rng.random() < 0.5:
        rng.shuffle(dims)
    signed = []
    for z, s in dims:
        if rng.random() < 0.2:
            offset += s * (z - 1)
            s = -s
        signed.append((z, s))
    for _ in range(rng.randint(0, 2)):
        extra = rng.choice([(1, rng.randint(0, 9)), (rng.randint(2, 3), 0)])
        signed.insert(rng.randint(0, len(signed)), extra)
    return n, tuple(z for z, _ in signed), tuple(s for _, s in signed), offset


def random_any(rng, n):
    size = tuple(rng.randint(1, 4) for _ in range(rng.randint(0, 3)))
    stride = tuple(rng.randint(-6, 6) for _ in size)
    low, high = extent(size, stride, 0)
    if high - low > n:
        return random_any(rng, n)
    return size, stride, rng.randint(-low, n - high)


def test_read_plans_of_nested_regions_equal_as_strided():
    rng = random.Random(0)
    for _ in range(6000):
        n, size, stride, offset = random_nested(rng)
        flat = np.arange(1, n + 1)
        steps = read_plan(n, size, stride, offset)
        assert steps is not None, (n, size, stride, offset)
        np.testing.assert_array_equal(apply(flat, steps), view(flat, size, stride, offset))


def test_write_plans_place_every_element_and_nothing_else():
    rng = random.Random(1)
    for _ in range(6000):
        n, size, stride, offset = random_nested(rng)
        steps = write_plan(n, size, stride, offset)
        if any(z > 1 and s == 0 for z, s in zip(size, stride, strict=True)):
            assert steps is None
            continue
        value = np.arange(1, 1 + int(np.prod(size))).reshape(size)
        expected = np.zeros(n, dtype=value.dtype)
        expected[elements(size, stride, offset)] = value.ravel()
        np.testing.assert_array_equal(apply(value, steps), expected)
        np.testing.assert_array_equal(apply(np.ones(size, bool), steps), expected != 0)


def test_plans_of_any_region_are_exact_or_absent():
    rng = random.Random(2)
    for _ in range(4000):
        n = rng.randint(1, 40)
        size, stride, offset = random_any(rng, n)
        flat = np.arange(n)
        steps = read_plan(n, size, stride, offset)
        if steps is not None:
            np.testing.assert_array_equal(apply(flat, steps), view(flat, size, stride, offset))
        if (steps := write_plan(n, size, stride, offset)) is not None:
            assert len(set(elements(size, stride, offset))) == int(np.prod(size))
            written = np.flatnonzero(apply(np.ones(size, bool), steps))
            assert sorted(elements(size, stride, offset)) == written.tolist()


@pytest.mark.parametrize(
    "n, size, stride, offset, steps",
    [
        (6, (6,), (1,), 0, []),
        (6, (2, 3), (3, 1), 0, [("reshape", (2, 3))]),
        (6, (3, 2), (1, 3), 0, [("reshape", (2, 3)), ("permute", (1, 0))]),
        (12, (2,), (4,), 5, [("reshape", (3, 4)), ("shrink", ((1, 3), (1, 2))), ("reshape", (2,))]),
        (12, (2, 2), (4, 1), 5, [("reshape", (3, 4)), ("shrink", ((1, 3), (1, 3)))]),
        (12, (3,), (1,), 4, [("shrink", ((4, 7),))]),
        (1, (2, 3), (0, 0), 0, [("reshape", (1, 1)), ("expand", (2, 3))]),
    ],
)
def test_plain_regions_take_plain_steps(n, size, stride, offset, steps):
    assert read_plan(n, size, stride, offset) == steps


@pytest.mark.parametrize(
    "n, size, stride, offset, pads",
    [(13, (3,), (4,), 0, False), (10, (3,), (3,), 2, False), (24, (2, 2), (12, 3), 4, False), (9, (3,), (4,), 0, True)],
)
def test_pads_only_where_there_is_no_room(n, size, stride, offset, pads):
    assert any(kind == "pad" for kind, _ in read_plan(n, size, stride, offset)) == pads


def test_windows_have_no_plan():
    assert read_plan(10, (8, 3), (1, 1), 0) is None
    assert write_plan(10, (2, 3), (3, 2), 0) is None


def test_set_questions_agree_with_enumeration():
    rng = random.Random(3)
    exact = 0
    for _ in range(6000):
        n = rng.randint(1, 40)
        a, b = (Region(0, torch.float32, *random_any(rng, n)) for _ in range(2))
        in_a, in_b = (elements(r.size, r.stride, r.offset) for r in (a, b))
        assert overlaps(a, b) == bool(set(in_a) & set(in_b)), (a, b)
        assert meets_itself(a.size, a.stride) == (len(set(in_a)) != len(in_a)), a
        assert extent(a.size, a.stride, a.offset) == (min(in_a), max(in_a) + 1)
        assert covers(n, a.size, a.stride, a.offset) == (sorted(in_a) == list(range(n)))
        if contains_exactly_same(a, b):
            exact += 1
            assert set(in_a) == set(in_b)
    assert exact > 10


def test_overlap_of_different_dtypes_is_decided_in_bytes():
    half, full = (Region(0, d, (2,), (2,), o) for d, o in [(torch.float16, 1), (torch.float32, 0)])
    assert overlaps(half, full)
    assert not overlaps(half.at(size=(1,), offset=2), full)
    assert overlaps(half.at(size=(1,), offset=4), full)
    assert not overlaps(half.at(storage=1), full)


def test_contiguity():
    assert is_contiguous((), ()) and is_contiguous((2, 1, 3), (3, 77, 1)) and is_contiguous((0, 3), (9, 9))
    assert not is_contiguous((3, 2), (1, 3)) and not is_contiguous((2, 3), (4, 1))
    assert covers(0, (0, 3), (3, 1), 0) and not covers(2, (0,), (1,), 0)
