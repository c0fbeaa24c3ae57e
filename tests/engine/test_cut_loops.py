"""Loops cut where their conditions change run the same iterations in the same order, and compute what the CPU does."""

from __future__ import annotations

import re

import pytest
import torch

from tests.differential import DEVICE, data
from torch_tinygrad.engine.cut_loops import cut


def loop(count: int, body: str, inner: str = "") -> list[str]:
    return ["  int a = 0;", f"  for (int i = 0; i < {count}; i++) {{", inner, f"    {body}", "  }", "  int b = 1;"]


def bounds(lines: list[str]) -> list[tuple[int, int]]:
    found = (re.match(r" *for \(int i = (\d+); i < (\d+); i\+\+\) \{$", line) for line in lines)
    return [(int(m[1]), int(m[2])) for m in found if m]


@pytest.mark.parametrize(
    ("count", "body", "parts"),
    [
        (256, "x[i] = ((0<i)?y[(i+-1)]:y[255]);", [(0, 1), (1, 256)]),
        (256, "x[i] = ((i<255)?((0<i)?1:2):3);", [(0, 1), (1, 255), (255, 256)]),
        (256, "x[i] = ((254<i)?((i<255)?1:2):3);", [(0, 255), (255, 256)]),  # the same place said in two ways
        (256, "x[i] = ((i<300)?1:(-1<i));", [(0, 256)]),  # no place inside
        (256, "x[i] = ((j<3)?1:(i<j));", [(0, 256)]),  # not of its number alone
        (256, "x[i] = ((ii<3)?1:2);", [(0, 256)]),  # another name
        (8, "x[i] = ((0<i)?1:2);", [(0, 8)]),  # short
        (256, "x[i] = " + "+".join(f"(i<{3 * n})" for n in range(1, 9)) + ";", [(0, 256)]),  # too many
    ],
)
def test_where_a_loop_is_cut(count, body, parts):
    lines = loop(count, body)
    done = cut(lines)
    assert bounds(done) == parts
    assert done.count(f"    {body}") == len(parts)
    assert (done[0], done[-1]) == (lines[0], lines[-1])


def test_loops_around_others_stay_whole():
    lines = ["  for (int i = 0; i < 64; i++) {", *loop(64, "x[i] = (i<3);"), "    y[i] = (0<i);", "  }"]
    assert bounds(cut(lines)) == [(0, 64), (0, 3), (3, 64)]


def test_long_bodies_stay_whole():
    assert bounds(cut(loop(64, "x[i] = (0<i);", "\n".join(["    y[0]++;"] * 3)))) == [(0, 1), (1, 64)]
    many = ["  for (int i = 0; i < 64; i++) {", *["    y[0] += (0<i);"] * 300, "  }"]
    assert cut(many) == many


PROGRAMS = {
    "rolls": lambda x: x.roll(1, 0) + 2 * x.roll(-1, 0) + 3 * x.roll(5, 1) - x.roll((-7, 2), (0, 1)),
    "pads": lambda x: torch.nn.functional.pad(x, (2, 3, 1, 4), value=0.5)[1:, 1:] * 2,
    "parts": lambda x: torch.cat([x[:, :11] * 2, x[:, 3:], x.flip(1)[:, :9] + 1], 1),
    "windows": lambda x: torch.nn.functional.max_pool2d(x[None], 3, 1, 1) - x,
    "sums": lambda x: torch.cat([x, x * 2], 1).roll(3, 1).cumsum(1).sum(0),
    "written": lambda x: x.clone().index_fill_(1, torch.tensor([0], device=x.device), 1.0).sub_(x.roll(1, 1)),
}


@pytest.mark.parametrize("size", [(3, 31), (5, 33), (64, 128)], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name, size):
    x = data(*size, device=DEVICE)
    torch.testing.assert_close(PROGRAMS[name](x).cpu(), PROGRAMS[name](x.cpu()))
