"""torch.tiny.explain: operators, kernels, flushes and lines of code of a call."""

from __future__ import annotations

import html.parser

import pytest
import torch

from torch_tinygrad import _C
from torch_tinygrad.target import target


def scaled(x: torch.Tensor, weight: torch.Tensor) -> float:
    y = (x @ weight).relu()
    return (y * 2).sum().item()


@pytest.fixture(scope="module")
def shown():
    x, weight = torch.randn(64, 64).to("tiny"), torch.randn(64, 64).to("tiny").requires_grad_()
    return torch.tiny.explain(scaled, x, weight)


def test_operators_have_the_lines_that_called_them(shown):
    (flush,) = shown.flushes
    assert [o.name for o in flush.operators] == ["aten::mm", "aten::relu", "aten::mul.Tensor", "aten::sum"]
    assert [o.line for o in flush.operators[:2]] == ["y = (x @ weight).relu()"] * 2
    assert flush.operators[3].place.startswith("test_explain.py:")
    assert flush.operators[0].results == "Float[64, 64]" and flush.operators[0].nbytes == 3 * 64 * 64 * 4


def test_steps_have_operators_bytes_and_times(shown):
    (flush,) = shown.flushes
    assert flush.way == "hit"  # compiled in the first of the two runs
    assert [s.kind for s in flush.steps].count("library") == bool(target().library)
    fused = next(s for s in flush.steps if "sum" in s.operators)
    assert "relu" in fused.operators and "mul" in fused.operators and fused.nbytes > 64 * 64 * 4
    assert all(s.microseconds >= 0 for s in flush.steps)
    product = next(s for s in flush.steps if "mm" in s.operators)
    assert product.flops >= 2 * 64**3 and (0 < fused.flops < product.flops or fused is product)
    assert shown.bandwidth > 1e8


def test_steps_of_the_library_have_counts(cpu_operators):
    """Of PyTorch's counter, which knows products alone, and of ours."""
    a = (torch.randn(64, 64) + 64 * torch.eye(64)).to("tiny")
    b, long = torch.randn(64, 3).to("tiny"), torch.randn(2, 8192).to("tiny")

    def step():
        held = [torch.linalg.solve(a, b), torch.linalg.inv(a), torch.linalg.qr(a), torch.linalg.svd(a)]
        held += [torch.linalg.eigh(a), torch.linalg.cholesky(a), torch.fft.fft(long)]
        torch.tiny.synchronize()
        return held

    n, found = 64, {}
    for flush in torch.tiny.explain(step).flushes:
        found |= {s.name.removeprefix("aten::"): s.flops for s in flush.steps if s.kind == "library"}
    expected = {
        "_linalg_solve_ex": 2 * n**3 // 3 + 2 * n**2 * 3,
        "linalg_inv_ex": 2 * n**3,
        "linalg_qr": 2 * (4 * n**3 // 3),
        "_linalg_svd": 21 * n**3,
        "_linalg_eigh": 9 * n**3,
        "linalg_cholesky_ex": n**3 // 3,
        "_fft_r2c": 5 * 2 * 8192 * 13 // 2,
    }
    if target().library:
        assert found == pytest.approx(expected, rel=1e-3)
    else:  # Fourier transforms and solving are kernels of our own there
        assert found and found == pytest.approx({name: expected[name] for name in found}, rel=1e-3)


def test_backward_operators_have_the_line_of_the_forward_pass():
    weight = torch.randn(16, 16).to("tiny").requires_grad_()

    def step():
        (weight.exp() * 3).sum().backward()
        torch.tiny.synchronize()

    (flush,) = torch.tiny.explain(step, runs=1).flushes
    backward = [o for o in flush.operators if o.source.startswith("backward of ")]
    assert backward and all(o.line == "(weight.exp() * 3).sum().backward()" for o in backward)
    assert flush.reason == "synchronize"


def test_results_that_are_held_are_told_from_those_that_are_not():
    held = []
    x = torch.ones(8).to("tiny")

    def keep():
        held[:] = [(x + 1) * 2]

    (flush,) = torch.tiny.explain(keep).flushes
    assert [o.kept for o in flush.operators] == [False, True]


def test_text_and_page_tell_the_same_and_the_page_stands_alone(shown, tmp_path):
    assert (
        "scaled: 4 operators in 3 steps and 1 flush;" in shown.text
        and "relu" in shown.text
        and "flush for" in shown.text
    )
    page = (tmp_path / "page.html").read_text() if shown.save(tmp_path / "page.html") else ""
    assert "y = (x @ weight).relu()" in page and "src=" not in page and "href=" not in page

    class Balanced(html.parser.HTMLParser):
        open_tables = 0

        def handle_starttag(self, tag, attrs):
            self.open_tables += tag == "table"

        def handle_endtag(self, tag):
            self.open_tables -= tag == "table"

    parser = Balanced()
    parser.feed(page)
    assert parser.open_tables == 0


def test_after_an_error_nothing_is_noted_any_more():
    def fails():
        torch.ones(3, device="tiny") + torch.ones(4, device="tiny")

    with pytest.raises(RuntimeError, match="size"):
        torch.tiny.explain(fails)
    assert not _C.watched()
    with pytest.raises(ValueError, match="at least once"):
        torch.tiny.explain(fails, runs=0)


def test_two_flushes_are_told_apart():
    x = torch.ones(8).to("tiny")

    def twice():
        if (x + 1).sum() > 0:
            x.mul(3).cpu()

    shown = torch.tiny.explain(twice)
    assert len(shown.flushes) == 2 and shown.flushes[0].reason != shown.flushes[1].reason


def test_a_backward_pass_without_a_python_frame_is_explained():
    query = torch.randn(2, 4, 32, 16).to("tiny").requires_grad_()

    def step():
        torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
        torch.tiny.synchronize()

    (flush,) = torch.tiny.explain(step, runs=1).flushes
    assert any("attention" in o.name and "backward" in o.name for o in flush.operators)
