"""Loops of the host's kernels, cut where their conditions change.

What is rolled, padded, joined or written in part reads one element or another by the loop's own number:
`0 < i ? x[i - 1] : x[255]`. clang computes such a loop lane by lane, since only some lanes may load. Cut at 1, every
condition is known in each part, and the long part has none: a step of a wave by rolls on 256 x 256 takes 26 us instead
of 400. The same iterations run in the same order, so this holds for every loop.
"""

from __future__ import annotations

import re

from tinygrad.renderer.cstyle import ClangRenderer

from torch_tinygrad.trace.decisions import decide

# Loops that are worth it, parts that one is cut into at most, and lines of text that all of them may have.
_LONG = 16
_MOST_PARTS = 5
_MOST_LINES = 400

_LOOP = re.compile(r"( *)for \(int (\w+) = 0; \2 < (\d+); \2\+\+\) \{$")


def cut(lines: list[str]) -> list[str]:
    """A kernel's lines, with its innermost loops cut."""
    result: list[str] = []
    i = 0
    while i < len(lines):
        loop = _LOOP.match(lines[i])
        end = _end_of_innermost(lines, i, loop[1]) if loop else None
        if loop is None or end is None:
            result.append(lines[i])
            i += 1
            continue
        indent, name, count = loop[1], loop[2], int(loop[3])
        body = lines[i + 1 : end]
        for low, high in _parts(name, count, body):
            result += [f"{indent}for (int {name} = {low}; {name} < {high}; {name}++) {{", *body, lines[end]]
        i = end + 1
    return result


def _end_of_innermost(lines: list[str], begin: int, indent: str) -> int | None:
    """The line that closes a loop with no other inside."""
    for i in range(begin + 1, len(lines)):
        if lines[i] == indent + "}":
            return i
        if lines[i].lstrip().startswith("for "):
            return None
    return None


def _parts(name: str, count: int, body: list[str]) -> list[tuple[int, int]]:
    """Where the loop begins and ends, part by part: conditions on its number alone are the same all through one."""
    whole = [(0, count)]
    if decide("short loop", count < _LONG):
        return whole
    text = "\n".join(body)
    above = {int(number) + 1 for number in re.findall(rf"\((-?\d+)<{name}\)", text)}
    below = {int(number) for number in re.findall(rf"\({name}<(-?\d+)\)", text)}
    cuts = sorted(number for number in above | below if 0 < number < count)
    if not cuts or len(cuts) >= _MOST_PARTS or (len(cuts) + 1) * len(body) > _MOST_LINES:
        return whole
    return list(zip([0, *cuts], [*cuts, count], strict=True))


def _render_body(self: ClangRenderer, function_name, kernel, bufs, uops, pref=None) -> str:
    return _plain_body(self, function_name, cut(kernel), bufs, uops, pref)


_plain_body = ClangRenderer._render_body


def apply() -> None:
    ClangRenderer._render_body = _render_body
