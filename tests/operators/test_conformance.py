"""The conformance command finds what is wrong, survives what crashes, and every operator stays as good as recorded.

The last test runs the first sample of every recorded operator, forward and backward in float32, and compares with
docs/coverage.json: one fixed sample each is quick enough for every run, and a lowering that breaks breaks it too.
"""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.differential import DEVICE
from torch_tinygrad.conformance import report
from torch_tinygrad.conformance.__main__ import ROOT, main
from torch_tinygrad.conformance.compare import Mismatch, compare_errors, compare_results
from torch_tinygrad.conformance.pool import Job, run_jobs
from torch_tinygrad.conformance.runner import ASPECTS, Check, check_operator
from torch_tinygrad.conformance.samples import copied, placed


def full_name(info) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def position_of(name: str) -> int:
    return next(i for i, info in enumerate(op_db) if info.name == name)


def test_differences_of_every_kind_are_found():
    a = torch.arange(6.0).view(2, 3)
    compare_results([a], [a.clone()], "cpu")
    for other in (a + 1, a.double(), a.view(3, 2), a.t().contiguous().t(), a.clone().requires_grad_()):
        with pytest.raises(AssertionError):
            compare_results([a], [other], "cpu")
    with pytest.raises(Mismatch, match="device"):
        compare_results([a], [a], "elsewhere")
    with pytest.raises(Mismatch, match="structure"):
        compare_results([a, a], [a], "cpu")
    with pytest.raises(AssertionError):
        compare_results([1.0], [2.0], "cpu")


def test_exceptions_are_the_same_in_type_and_message_apart_from_the_device():
    compare_errors(RuntimeError("on cpu"), RuntimeError("on tiny:0"))
    for want, got in (
        (RuntimeError("a"), RuntimeError("b")),
        (RuntimeError("a"), TypeError("a")),
        (None, TypeError("a")),
        (TypeError("a"), None),
    ):
        with pytest.raises(Mismatch):
            compare_errors(want, got)


def test_samples_keep_strides_offsets_and_identity_on_the_device():
    base = torch.arange(24.0).view(4, 6)
    for t in (base, base.t(), base[1:, ::2], base[:, :1].expand(4, 3), base[2, 3], base[:0]):
        copy = copied(t, DEVICE)
        assert (copy.stride(), copy.storage_offset(), copy.shape) == (t.stride(), t.storage_offset(), t.shape)
        assert torch.equal(copy.cpu(), t)

    class Sample:
        input, args, kwargs = base, (base, [base]), {"device": "cpu"}

    call = placed(Sample, DEVICE)
    assert call.input is call.args[0] is call.args[1][0] and call.kwargs == {"device": DEVICE}


def test_an_operator_that_changes_its_answer_fails_and_one_that_does_not_passes(monkeypatch):
    info = op_db[position_of("sin")]
    calls = itertools.count()
    monkeypatch.setattr(info, "op", lambda x, **kwargs: x + next(calls))
    wrong = Check(info, torch.float32, 2, "cpu").run("forward")
    assert wrong.failed and not wrong.passed and "close" in wrong.failures[0]
    monkeypatch.undo()
    assert Check(info, torch.float32, 2, "cpu").run("forward").failed == 0


@pytest.mark.parametrize("name", ["add", "nn.functional.linear", "sort", "nn.functional.dropout"])
def test_every_aspect_of_an_operator_runs_and_passes(name):
    info = op_db[position_of(name)]
    outcomes = {a: o for a, o in check_operator(info, torch.float32, 2, DEVICE, ASPECTS) if o is not None}
    assert {"forward", "noncontiguous", "backward"} <= set(outcomes)
    failing = {aspect: outcome["failures"] for aspect, outcome in outcomes.items() if outcome["failed"]}
    assert not failing


def test_a_hang_and_a_crash_cost_one_aspect_and_the_rest_runs():
    jobs = [
        Job(position_of("grid_sampler_3d"), "hangs", "float32", ("forward",)),
        Job(len(op_db), "crashes", "float32", ("forward",)),
    ]
    (hung,) = run_jobs(jobs[:1], 1, 6, "cpu", 0.01)
    (crashed,) = run_jobs(jobs[1:], 1, 6, "cpu", 60)
    assert "no end within" in hung.outcomes["forward"]["failures"][0]
    assert "process ended" in crashed.outcomes["forward"]["failures"][0]
    (fine,) = run_jobs([Job(position_of("sin"), "sin", "float32", ("forward",))], 1, 2, "cpu", 60)
    assert report.passes(fine.outcomes["forward"]) is True


def outcome(passed, failed=0, **notes):
    return {"passed": passed, "failed": failed, "failures": ["sample 0: wrong"] * failed, "notes": notes}


def test_report_counts_operators_and_updates_the_readme_in_place(tmp_path):
    operators = {
        "good": {"float32": {"forward": outcome(6), "backward": outcome(6), "how": "lowered"}},
        "bad": {"float32": {"forward": outcome(5, 1), "errors": outcome(0), "how": "decomposed"}},
        "fallen": {"float32": {"forward": outcome(1, fallbacks={"aten::linalg_qr": 1}), "how": "CPU"}},
    }
    (tmp_path / "README.md").write_text("before\n<!-- coverage -->\nold\n<!-- /coverage -->\nafter\n")
    document = {"torch": "2", "tinygrad": "0", "backend": "CPU", "samples": 6, "date": "today", "operators": operators}
    report.write(document, tmp_path)
    readme, page = (tmp_path / "README.md").read_text(), (tmp_path / "docs" / "coverage.md").read_text()
    assert readme.startswith("before") and readme.endswith("after\n") and "old" not in readme
    assert "| forward, float32 | 2 | 3 | 66.7 % |" in readme
    assert "| backward, float32 | 1 | 1 | 100.0 % |" in readme and "error inputs" not in readme
    assert "| bad | decomposed | **5/6** |" in page and "LAPACK" in page
    assert json.loads((tmp_path / "docs" / "coverage.json").read_text()) == document


def test_only_what_passed_before_and_fails_now_is_a_regression():
    before = {"a": {"float32": {"forward": outcome(6)}}, "b": {"float32": {"forward": outcome(5, 1)}}}
    now = {name: {"float32": {"forward": outcome(0, 1), "how": "CPU"}} for name in "abc"}
    (found,) = report.regressions(before, now)
    assert found.startswith("a float32 forward")


def test_every_operator_is_as_good_as_recorded():
    recorded = json.loads((ROOT / "docs" / "coverage.json").read_text())["operators"]
    named = [argument for info in op_db if full_name(info) in recorded for argument in ("--op", info.name)]
    arguments = [*named, "--samples", "1", "--dtype", "float32", "--aspect", "forward,backward", "--device", DEVICE]
    assert named and main([*arguments, "--check"]) == 0, "operators got worse than docs/coverage.json says: see above"


@pytest.mark.skipif(DEVICE != "tiny", reason="about the device's inference")
def test_results_of_large_calls_are_inferred_as_the_cpu_makes_them(monkeypatch):
    """Every eighth operator, from small calls of the same structure; all of them: `--large --compile never`."""
    monkeypatch.setenv("TORCH_TINY_ASK_BYTES", "0")
    monkeypatch.setenv("TORCH_TINY_COMPILE", "never")
    arguments = ["--shard", "3/8", "--samples", "2", "--dtype", "float32", "--aspect", "forward,out,errors"]
    assert main([*arguments, "--large", "--compile", "never", "--check"]) == 0
