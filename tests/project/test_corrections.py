"""Corrections of tinygrad say what they are for, and are not silent about what they do not find. Whether each is still
needed: `python -m tests.corrections`."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tinygrad import dtypes
from tinygrad.uop.ops import Ops, PatternMatcher, UPat
from tinygrad.uop.symbolic import fold_add_divmod_recombine, sym

from torch_tinygrad import corrections
from torch_tinygrad.corrections import arithmetic, registry, rules

corrections.apply()  # as importing torch_tinygrad.kernels does

ROOT = Path(__file__).parents[2]
ONES = pytest.mark.parametrize("one", corrections.ALL.values(), ids=lambda one: one.name)


@cache
def functions(path: str) -> set[str]:
    return {node.name for node in ast.parse((ROOT / "tests" / path).read_text()).body if hasattr(node, "name")}


@ONES
def test_the_test_that_shows_it_is_there(one):
    path, _, function = one.test.partition("::")
    assert function in functions(path), f"{one.name} names tests/{one.test}"


@ONES
def test_it_says_what_goes_wrong_and_for_which_tinygrad(one):
    pinned = re.search(r"tinygrad==([\d.]+)", (ROOT / "setup.py").read_text())
    assert one.why.endswith(".") and one.tinygrad == pinned[1]


def test_no_function_of_tinygrads_is_rewritten_in_place():
    package = ROOT / "torch_tinygrad"
    assert not [path for path in package.rglob("*.py") if re.search(r"__code__ = |\.__code__=", path.read_text())]


def test_a_rule_that_is_not_there_is_named(monkeypatch):
    def looks_in_vain():
        """It goes wrong."""
        rules.find_pattern(sym, UPat.var("x") * 17, "x * 17")

    wrong = registry.Correction("x_times_seventeen", "It goes wrong.", "0.14.0", "project/none.py::no", looks_in_vain)
    monkeypatch.setattr(registry, "ALL", {wrong.name: wrong})
    monkeypatch.setattr(registry, "_applied", False)
    expected = r"x_times_seventeen.* 0 rules .*that for x \* 17\. What went wrong: It goes wrong\. tests/project/none"
    with pytest.raises(registry.TinygradChanged, match=expected):
        registry.apply()


def test_what_tinygrad_no_longer_has_is_named(monkeypatch):
    def wraps_nothing():
        """It goes wrong."""
        registry.wrap(Ops, "gone_for_good", lambda plain: plain)

    wrong = registry.Correction("wraps", "It goes wrong.", "0.14.0", "project/none.py::no", wraps_nothing)
    monkeypatch.setattr(registry, "ALL", {wrong.name: wrong})
    monkeypatch.setattr(registry, "_applied", False)
    with pytest.raises(registry.TinygradChanged, match="'wraps' corrects in 0.14.0: .*gone_for_good"):
        registry.apply()


def test_two_rules_of_one_pattern_are_not_guessed_among():
    twice = PatternMatcher([(UPat.var("x") * 3, lambda x: x), (UPat.var("x") * 3, lambda x: None)])
    with pytest.raises(rules.RuleNotFound, match="there are 2 rules"):
        rules.find_pattern(twice, UPat.var("x") * 3, "x * 3")


def test_a_rule_is_changed_in_every_set_that_has_it():
    """Sets that were added up before, and those that are added up afterwards."""
    sums = [rule for rule in sym.patterns if rule[0].match_dtype == arithmetic.NO_FLOATS]
    assert len(sums) == len(arithmetic.INTEGERS_ALONE)
    for larger in (sym + PatternMatcher([]), *rules._sets()):
        functions_of = {rule[1]: rule[0].match_dtype for rule in larger.patterns}
        assert all(functions_of[f] == arithmetic.NO_FLOATS for _, f in sums if f in functions_of)


def test_every_rule_for_sums_and_products_is_known():
    """One that a new tinygrad has may move a rounding: it belongs among those that keep to integers, or here."""
    x, y, c, chosen = UPat.var("x"), UPat.var("y"), UPat.cvar("c"), UPat.var("c")
    sound = {
        "x * 1": x * 1,
        "x * y of bools": UPat.var("x", dtypes.bool) * UPat.var("y", dtypes.bool),
        "x + y of bools": UPat.var("x", dtypes.bool) + UPat.var("y", dtypes.bool),
        "0 / 0": UPat.cvar("x", arg=0) / 0,
        "x * 0 / 0": (x * 0) / 0,
        "x + x": x + x,
        "a * (x + b) of indices": UPat.cvar("y") * (UPat.var("x", dtypes.weakint) + c),
        "where(c, x, 0) + where(c, 0, y)": chosen.where(UPat.var("t"), 0) + chosen.where(0, UPat.var("f")),
        "(x + y) * a of indices": (UPat.var("x", dtypes.weakint) + y) * c,
    }
    known = [rules.find_pattern(sym, pattern, what) for what, pattern in sound.items()]
    heads = {Ops.ADD, Ops.MUL, Ops.RECIPROCAL, Ops.REDUCE}
    unknown = [
        rule
        for rule in sym.patterns
        if len(rule[0].op) <= 3
        and heads.intersection(rule[0].op)
        and rule[0].match_dtype != arithmetic.NO_FLOATS
        and rule[1] is not fold_add_divmod_recombine
        and not any(rule is one for one in known)
    ]
    assert not [rules.names_of(function) for _, function in unknown]
