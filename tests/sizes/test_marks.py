"""What a user knows of sizes, and what the device tells of them."""

import pytest
import torch

from .counting import values


def compiles_of(size, mark) -> int:
    x = values(6, size, device="tiny")
    mark(x, 1)
    before = torch.tiny.stats()["compiles"]
    got = (x * 2).softmax(1).sum(0)
    torch.testing.assert_close(got.cpu(), (x.cpu() * 2).softmax(1).sum(0))
    return torch.tiny.stats()["compiles"] - before


def test_a_dynamic_size_is_compiled_for_many_at_once():
    assert [compiles_of(n, torch.tiny.mark_dynamic) for n in (40, 57, 33, 64)] == [0, 1, 0, 0]


def test_a_dynamic_size_that_stays_the_same_is_compiled_after_a_while():
    counts = [compiles_of(40, torch.tiny.mark_dynamic) for _ in range(12)]
    assert sum(counts) == 1 and counts[0] == counts[1] == 0


def test_a_static_size_has_programs_of_its_own():
    assert [compiles_of(n, torch.tiny.mark_static) for n in (40, 57, 33, 40, 57)] == [1, 1, 1, 0, 0]


def test_marks_hold_for_views_and_end_with_the_memory():
    x = values(6, 40, device="tiny")
    torch.tiny.mark_static(x.t(), 0)
    assert [compiles_of(n, lambda *_: None) for n in (44, 57, 33)] == [1, 1, 0]
    with pytest.raises(RuntimeError, match="on tiny only"):
        torch.tiny.mark_dynamic(torch.ones(2, 3), 0)
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.tiny.mark_dynamic(x, 2)


def test_a_line_says_which_sizes_vary_and_why_there_is_a_new_program(monkeypatch, capfd):
    monkeypatch.setenv("TORCH_TINY_DEBUG", "1")
    for n in (40, 57, 5000):
        (values(6, n, device="tiny") * 2).sum(1).cpu()
    lines = capfd.readouterr().err.splitlines()
    (made, *_) = [line for line in lines if "one program for many sizes" in line]
    (why,) = [line for line in lines if "a new program, since" in line]
    assert "dimension 1 of Float[6, 57] for aten::mul" in made and "is anything from 5 to" in made
    assert "dimension 1 of Float[6, 5000] for aten::mul" in why and "is 5000, not from 5 to" in why
