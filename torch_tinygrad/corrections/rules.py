"""Finds the rules of tinygrad's that corrections are for: by what they match and by the names their functions take,
never by their place in a list. Where another version of tinygrad has no such rule, or more than one, that is said in
one line."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

from tinygrad.uop.ops import Ops, PatternMatcher, UPat

Rule = tuple[UPat, Callable]


class RuleNotFound(RuntimeError):
    """tinygrad has changed: see docs/tinygrad.md."""

    def __init__(self, what: str, count: int):
        super().__init__(
            f"tinygrad {version('tinygrad')} has {count} rules where torch-tinygrad corrects one: {what}. "
            "See docs/tinygrad.md, 'An upgrade'"
        )


def names_of(function: Callable) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[: code.co_argcount]


def find(rules: PatternMatcher, op: Ops, names: str) -> Rule:
    """The one rule for this operation whose function takes just these names."""
    found = [r for r in rules.patterns if r[0].op == (op,) and names_of(r[1]) == tuple(names.split())]
    if len(found) != 1:
        raise RuleNotFound(f"one for {op} of ({names})", len(found))
    return found[0]


def without(rules: PatternMatcher, rule: Rule) -> PatternMatcher:
    return PatternMatcher([r for r in rules.patterns if r is not rule])


def corrected(rules: PatternMatcher, rule: Rule, function: Callable) -> PatternMatcher:
    """With another function for one rule."""
    return PatternMatcher([(r[0], function) if r is rule else r for r in rules.patterns])


def replaced(rules: PatternMatcher, old: Callable, new: Callable) -> PatternMatcher:
    """With another function wherever this one, which has a name in tinygrad, is used."""
    count = sum(function is old for _, function in rules.patterns)
    if count == 0:
        raise RuleNotFound(f"those that call {old.__name__}", count)
    return PatternMatcher([(pattern, new if function is old else function) for pattern, function in rules.patterns])
