"""What is guessed of a family of traces from a few of its members: which integers vary, which follow, how far."""

import pytest

from torch_tinygrad.trace.integers import Kinds
from torch_tinygrad.trace.ranges import boxes
from torch_tinygrad.trace.relations import Unrelated, Variable, relate

# One region of two dimensions: sizes, strides, offset; then the bytes of its storage, of floats.
MATRIX = Kinds(frozenset({0, 1}), range(5, 5), {4: (2, 3)}, {4: (2, 3)}, ((4, 5, 4),))


def corner(n, k):
    """What a[k + 1:, k + 1:] is, of an n x n matrix."""
    return [n - 1 - k, n - 1 - k, n, 1, (k + 1) * (n + 1), 4 * n * n]


def ranges(members, kinds=MATRIX):
    def integers(related, point):
        return [related.forms[p](point) if p in related.forms else v for p, v in enumerate(members[-1])]

    return boxes(relate(members, kinds), members[-1], kinds), integers


def test_an_offset_that_falls_as_a_size_grows():
    tried, integers = ranges([corner(24, 1), corner(24, 2)])
    related, box = tried[0]
    assert related.variables == (Variable(0),) and box[0][0] == 5 and box[0][2] == 23
    for m in range(5, 24):
        assert integers(related, (m,)) == corner(24, 23 - m)


def test_a_part_and_the_whole_vary_together():
    """A whole that is less than its part does not come: the range is one of the part and of the rest."""
    tried, integers = ranges([corner(24, 1), corner(24, 5), corner(31, 2)])
    related, box = tried[0]
    assert {v.less is None for v in related.variables} == {True, False}
    for n, k in ((24, 3), (60, 20), (40, 1), (100, 2)):
        m = n - 1 - k
        point = tuple(m if v.less is None else n - m for v in related.variables)
        assert integers(related, point) == corner(n, k)
        assert all(low <= x <= high for x, (low, _, high) in zip(point, box, strict=True))


# A row of a matrix beside the whole: size, stride, offset; sizes, strides, offset; bytes.
ROW = Kinds(
    frozenset({0, 3, 4}), range(8, 8), {2: (1,), 7: (5, 6)}, {2: (1, 5, 6), 7: (1, 5, 6)}, ((2, 8, 4), (7, 8, 4))
)


def row(n, i):
    """What a[i, 1:] is, of an n x 6 matrix."""
    return [5, 1, 6 * i + 1, n, 6, 6, 1, 0, 24 * n]


def test_an_offset_on_its_own_goes_as_far_as_the_memory():
    tried, integers = ranges([row(40, 7), row(40, 30)], ROW)
    related, box = tried[0]
    assert related.variables == (Variable(2, 5, 1),) and (box[0][0], box[0][2]) == (0, 39)
    assert all(integers(related, (i,)) == row(40, i) for i in range(40))


def test_an_offset_in_a_memory_that_grows():
    """Every row of every matrix is one that may come: the range is one of rows before it, and of rows from it on."""
    tried, integers = ranges([row(40, 7), row(40, 30), row(31, 29)], ROW)
    related, box = tried[0]
    assert related.variables == (Variable(3, less=1), Variable(2, 5, 1)) and integers(related, (5, 2)) == row(7, 2)
    assert [low for low, _, _ in box] == [1, 1] and all(high > 200 for _, _, high in box)


def test_sizes_near_a_multiple_of_another():
    kinds = Kinds(frozenset({0, 2}), range(6, 6), {}, {}, ())
    relation = relate([[37, 1, 221, 1, 888], [52, 1, 311, 1, 1248]], kinds)
    assert relation.variables == (Variable(0),) and relation.forms[2]((100,)) == 599


def test_three_sizes_on_their_own_and_no_more():
    kinds = Kinds(frozenset(range(4)), range(6, 6), {}, {}, ())
    members = [[8, 41, 97, 8 * 41 * 4], [6, 58, 23, 6 * 58 * 4], [7, 30, 60, 7 * 30 * 4]]
    assert len(relate(members, kinds).variables) == 3
    with pytest.raises(Unrelated, match="more than 3"):
        relate([[*m, x] for m, x in zip(members, (1009, 31, 504), strict=True)], kinds)


# The columns of a matrix that are read: sizes, strides, offset; bytes.
SEEN = Kinds(frozenset({0, 1}), range(5, 5), {4: (2, 3)}, {4: (2, 3)}, ((4, 5, 4),))


@pytest.mark.parametrize("first", [(6, 12), (13, 12)])
def test_a_part_that_was_once_the_whole_is_a_part_still(first):
    """Also where the whole is told by a size of one column less than it has, as decoding with a cache tells it."""
    more = int(first[0] > first[1])
    members = [[4, n, m + more, 1, 0, 16 * (m + more)] for n, m in (first, (12, 12), (10, 16), (15, 21))]
    tried, integers = ranges(members, SEEN)
    related, box = tried[0]
    (whole,) = (i for i, v in enumerate(related.variables) if v.less is not None)
    assert len(box) == 2 and box[whole][0] == 0 and box[whole][2] > 6
    assert [integers(related, point) for point in related.seen] == members
