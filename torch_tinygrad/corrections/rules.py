"""Finds the rules of tinygrad's that corrections are for, by what they match and by the names their functions take,
never by their place in a list, and changes them.

Sets of rules are added up to larger ones as tinygrad is imported. A rule that is wrong is changed in one set by
`without`, `corrected` and `replaced`, which give another set, and in all of them by `change_everywhere`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from tinygrad.uop.ops import Ops, PatternMatcher, UPat

Rule = tuple[UPat, Callable]


class RuleNotFound(RuntimeError):
    """There is no such rule, or there are several."""

    def __init__(self, what: str, count: int):
        super().__init__(f"there are {count} rules where one is corrected, {what}")


def names_of(function: Callable) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[: code.co_argcount]


def find(rules: PatternMatcher, op: Ops, names: str) -> Rule:
    """The one rule for this operation whose function takes just these names."""
    found = [r for r in rules.patterns if r[0].op == (op,) and names_of(r[1]) == tuple(names.split())]
    if len(found) != 1:
        raise RuleNotFound(f"one for {op} of ({names})", len(found))
    return found[0]


def find_pattern(rules: PatternMatcher, pattern: UPat, what: str) -> Rule:
    """The one rule that matches just what this pattern does."""
    found = [r for r in rules.patterns if _are_same(r[0], pattern)]
    if len(found) != 1:
        raise RuleNotFound(f"that for {what}", len(found))
    return found[0]


def _are_same(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(_are_same, a, b))
    if not isinstance(a, UPat) or not isinstance(b, UPat):
        return a is b
    return _outside(a) == _outside(b) and _are_same(a._in_src, b._in_src)


def _outside(pattern: UPat) -> tuple:
    kinds, dtypes = (None if one is None else frozenset(one) for one in (pattern.op, pattern.match_dtype))
    arg = (type(pattern.arg), pattern.arg)
    return kinds, dtypes, arg, pattern.match_tag, pattern.name, pattern.strict_length, pattern.is_any


# ---- in one set ----------------------------------------------------------------------------------------------------


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


# ---- in all of them ------------------------------------------------------------------------------------------------

_changes: dict[tuple[int, int], Rule] = {}
_kept: list[Rule] = []  # so that what is changed keeps its identity


def change_everywhere(old: Rule, new: Rule) -> None:
    """From `carry_out` on."""
    _changes[id(old[0]), id(old[1])] = new
    _kept.append(old)


def carry_out() -> None:
    """Changes rules in every set of tinygrad's that has them. Larger sets that are not there yet are made of these."""
    for rules in _sets():
        if any((id(pattern), id(function)) in _changes for pattern, function in rules.patterns):
            changed = [_changes.get((id(r[0]), id(r[1])), r) for r in rules.patterns]
            PatternMatcher.__init__(rules, changed)
    PatternMatcher.__add__.cache_clear()
    _changes.clear()
    _kept.clear()


def _sets() -> Iterator[PatternMatcher]:
    """Those that modules and classes of tinygrad's have a name for, each once."""
    seen = set()
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "tinygrad"]
    for module in modules:
        for value in list(vars(module).values()):
            owned = vars(value).values() if isinstance(value, type) else (value,)
            for rules in owned:
                if isinstance(rules, PatternMatcher) and id(rules) not in seen:
                    seen.add(id(rules))
                    yield rules
