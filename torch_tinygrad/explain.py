"""`torch.tiny.explain(function, *args)`: what the device did for a call, as text and as a page of HTML.

The runtime notes flushes, steps and lines of code only while it is asked to here (csrc/flush/journal.cpp)."""

from __future__ import annotations

import html
import linecache
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import _C
from .choice import is_host

WAYS = {
    "hit": "its program was known",
    "miss": "its program was compiled",
    "loaded": "its program was on disk",
    "direct": "ran operator by operator",
}


class Operator(NamedTuple):
    """A recorded operator, and the line of the user's code that called it or whose backward pass it is part of."""

    name: str
    source: str
    results: str
    nbytes: int
    kept: bool  # somebody still holds a result when the flush comes, so it is stored

    @property
    def line(self) -> str:
        place = self.source.removeprefix("backward of ")
        file, _, number = place.rpartition(":")
        return linecache.getline(file, int(number)).strip() if number.isdigit() else ""

    @property
    def place(self) -> str:
        prefix = "backward of " if self.source.startswith("backward of ") else ""
        return prefix + os.path.basename(self.source.removeprefix("backward of "))


class Step(NamedTuple):
    """A kernel or an operator of ATen's: what it stands for, the bytes it moves at least, the operations that are
    counted for it, and how long it took."""

    kind: str  # "kernel", or "library" for an operator of ATen's
    name: str
    operators: str
    nbytes: int
    flops: int
    microseconds: float


@dataclass(frozen=True)
class Flush:
    reason: str
    way: str
    device: int
    milliseconds: float  # of its steps
    compile_milliseconds: float
    operators: list[Operator]
    steps: list[Step]


@dataclass(frozen=True)
class Explanation:
    """What a call did. `print` it, look at it in a notebook, or `save` the page; what is shown is also here as data."""

    name: str
    flushes: list[Flush]
    bandwidth: float  # bytes a second that a large copy moves on this machine

    @property
    def text(self) -> str:
        return "\n".join(_text(self))

    @property
    def html(self) -> str:
        return "\n".join(_page(self))

    def save(self, path: str | os.PathLike[str] | None = None) -> str:
        """Writes the page, which needs no other file, and gives its path back. Where none is given, that is a new
        file in the folder for temporary ones."""
        if path is None:
            handle, path = tempfile.mkstemp(prefix="torch-tiny-explain-", suffix=".html")
            os.close(handle)
        Path(path).write_text(self.html, encoding="utf-8")
        return os.fspath(path)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.html


def explain(function: Callable, *args: Any, runs: int = 2, **kwargs: Any) -> Explanation:
    """Calls `function(*args, **kwargs)` `runs` times, compiling what it meets, and explains the last call: what flushed
    and why, which operators went into which kernel, what each moved and took, and where in the code they were called.
    Steps are timed one by one, so those that could run at the same time take longer than usual."""
    from .tiny import compile_mode, synchronize

    if runs < 1:
        raise ValueError(f"explain calls the function at least once, not {runs} times")
    with compile_mode("always"):
        for run in range(runs):
            synchronize()
            if run == runs - 1:
                _C.explain(_source)
            try:
                function(*args, **kwargs)
                synchronize()
            finally:
                _C.explain(None)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return Explanation(name, [_flush(note) for note in _C.explained()], bandwidth())


@cache
def bandwidth() -> float:
    """Bytes a second that a copy of 64 MiB reads and writes on this machine; of less, where the device is slow."""
    from .tiny import synchronize

    device = "cpu" if is_host() else "tiny"

    def seconds(elements: int) -> float:
        source = torch.ones(elements, device=device)
        target = torch.zeros_like(source)
        best = float("inf")
        for _ in range(5):
            synchronize()
            start = time.perf_counter()
            target.copy_(source)
            synchronize()
            best = min(best, time.perf_counter() - start)
        return best

    elements = 1 << (24 if is_host() else 14)
    while (taken := seconds(elements)) < 0.002 and elements < 1 << 24:
        elements *= 4
    return 2 * 4 * elements / taken


_HIDDEN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep, "<")


def _source() -> str:
    """The innermost line that is neither PyTorch's nor ours."""
    frame = sys._getframe().f_back  # none in a thread of autograd's
    while frame is not None:
        file = frame.f_code.co_filename
        if file == __file__:
            return ""
        if not file.startswith(_HIDDEN):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _flush(note: dict[str, Any]) -> Flush:
    steps = [_step(text, (end - start) / 1e3) for text, start, end in note["steps"]]
    return Flush(
        note["reason"],
        note["way"],
        note["device"],
        sum(s.microseconds for s in steps) / 1e3,
        note["compile_ms"],
        [Operator(*node) for node in note["nodes"]],
        steps,
    )


def _step(text: str, microseconds: float) -> Step:
    """From the line that a program has for a step (engine/host.py), or the name of an operator that ran directly."""
    if match := re.fullmatch(r"(kernel|aten) (\S+), (\d+) bytes, (\d+) flops(?:: (.*))?", text):
        kind, name, nbytes, flops, operators = match.groups()
        if kind == "aten":
            return Step("library", name, name.removeprefix("aten::"), int(nbytes), int(flops), microseconds)
        return Step("kernel", name, operators or "", int(nbytes), int(flops), microseconds)
    kind = "library" if text.startswith("aten::") else "kernel"
    return Step(kind, text, text.removeprefix("aten::"), 0, 0, microseconds)


# ---- how it is shown ----


def _amount(nbytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}" if unit != "B" else f"{nbytes:.0f} B"
        nbytes /= 1000
    return f"{nbytes:.3g} GB"


def _share(step: Step, bandwidth: float) -> str:
    """Of what the machine's memory can do. Small operands lie in caches, which are faster."""
    if not step.nbytes or not step.microseconds:
        return ""
    return f"{100 * step.nbytes / (step.microseconds * 1e-6) / bandwidth:.0f} %"


def _speed(step: Step) -> str:
    """Billions of operations a second."""
    if not step.flops or not step.microseconds:
        return ""
    return f"{step.flops / step.microseconds / 1e3:.3g}"


def _summary(shown: Explanation) -> str:
    steps = [s for f in shown.flushes for s in f.steps]
    operators = sum(len(f.operators) for f in shown.flushes)
    flushes = "1 flush" if len(shown.flushes) == 1 else f"{len(shown.flushes)} flushes"
    return (
        f"{operators} operators in {len(steps)} steps and {flushes}; "
        f"{_amount(sum(s.nbytes for s in steps))} moved and {sum(s.flops for s in steps) / 1e9:.3g} billion operations "
        f"computed in {sum(s.microseconds for s in steps) / 1e3:.3f} ms; "
        f"a large copy moves {shown.bandwidth / 1e9:.1f} GB/s here"
    )


def _heading(flush: Flush) -> str:
    compiling = f" in {flush.compile_milliseconds:.0f} ms" if flush.way == "miss" else ""
    return (
        f"flush for {flush.reason}: {len(flush.operators)} operators, {WAYS.get(flush.way, flush.way)}{compiling}, "
        f"{len(flush.steps)} steps, {flush.milliseconds:.3f} ms"
    )


def _text(shown: Explanation) -> Iterator[str]:
    yield f"{shown.name}: {_summary(shown)}"
    for flush in shown.flushes:
        yield ""
        yield _heading(flush)
        yield f"  {'us':>9} {'moved':>9} {'of copy':>8} {'Gflop/s':>8}  step"
        for s in flush.steps:
            what = f"{s.name}: {s.operators}" if s.kind == "kernel" else s.name
            share = _share(s, shown.bandwidth)
            yield f"  {s.microseconds:9.1f} {_amount(s.nbytes):>9} {share:>8} {_speed(s):>8}  {what}"
        yield "  operators, as they were called (* is still held and therefore stored)"
        for o in flush.operators:
            mark, name = "*" if o.kept else " ", o.name.removeprefix("aten::")
            yield f"  {mark} {name} -> {o.results}  {o.place}  {o.line}".rstrip()


_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; padding: 0 1em; color: #222; }
h1 { font-size: 1.3em; } h2 { font-size: 1.05em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; margin: .6em 0 1.2em; }
th, td { text-align: left; padding: .2em .6em; border-bottom: 1px solid #ddd; vertical-align: top; }
th { font-weight: 600; color: #666; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
code { font: 12px ui-monospace, monospace; overflow-wrap: anywhere; }
.bar { background: #cfe3f7; height: .9em; display: block; min-width: 1px; } .library .bar { background: #f3d9b1; }
td.w { white-space: nowrap; } .muted { color: #777; } summary { cursor: pointer; color: #666; }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd; } th, td { border-color: #333; }
  .bar { background: #2d5f8f; } .library .bar { background: #8a6a2f; } }
"""


def _page(shown: Explanation) -> Iterator[str]:
    e = html.escape
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{e(shown.name)}</title>'
    yield f"<style>{_STYLE}</style>"
    yield f"<h1>{e(shown.name)}</h1><p>{e(_summary(shown))}</p>"
    yield '<p class="muted">Blue: a kernel, with the operators fused into it. Yellow: an operator of a library.</p>'
    longest = max((s.microseconds for f in shown.flushes for s in f.steps), default=0) or 1
    for flush in shown.flushes:
        yield f"<h2>{e(_heading(flush))}</h2><table>"
        yield '<tr><th>operators<th>step<th class="n">moved<th class="n">of a copy\'s speed<th class="n">Gflop/s'
        yield '<th class="n">µs<th width="20%"></tr>'
        for s in flush.steps:
            yield (
                f'<tr class="{s.kind}"><td>{e(s.operators)}<td class="w"><code>{e(s.name)}</code>'
                f'<td class="n">{_amount(s.nbytes)}'
                f'<td class="n">{_share(s, shown.bandwidth)}<td class="n">{_speed(s)}<td class="n">{s.microseconds:.1f}'
                f'<td><span class="bar" style="width:{100 * s.microseconds / longest:.1f}%"></span></tr>'
            )
        yield f"</table><details open><summary>{len(flush.operators)} operators, as they were called</summary><table>"
        yield '<tr><th>operator<th>result<th class="n">reads and writes<th>stored<th>where</tr>'
        for o in flush.operators:
            yield (
                f"<tr><td>{e(o.name.removeprefix('aten::'))}<td><code>{e(o.results)}</code>"
                f'<td class="n">{_amount(o.nbytes)}<td class="w">{"still held" if o.kept else ""}'
                f'<td><span class="muted">{e(o.place)}</span> <code>{e(o.line)}</code></tr>'
            )
        yield "</table></details>"
    yield "</html>"
