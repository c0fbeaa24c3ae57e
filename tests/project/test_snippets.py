"""Every snippet in Python in the README and in docs/ is run, and every link in them leads somewhere.

The snippets of a page run in order, in one namespace. What stands beside them holds: a comment after `print(...)` is
what it prints, and a comment at the end that begins with the name of an error or of a warning is what the snippet ends
in. A comment before a snippet says where it is copied from, or that it is run by torchrun.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import re
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.differential import ON_TINY
from tests.processes import torchrun
from torch_tinygrad import ops
from torch_tinygrad.choice import is_host

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])


class Snippet(NamedTuple):
    code: str
    line: int  # of the page
    told: str  # the comment before it


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text()
    found = re.finditer(r"^(?:<!-- (.*?) -->\n)?```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Snippet(m[2], text[: m.start(2)].count("\n"), m[1] or "") for m in found]


WITH_SNIPPETS = [page for page in PAGES if snippets(page)]


def ending(code: str) -> tuple[type[BaseException], str] | None:
    """The error or warning that the last lines of a snippet tell of."""
    told = re.search(r"\n# (\w+): (.*(?:\n#.*)*)\s*$", code)
    if told is None:
        return None
    kind = ops.FallbackWarning if told[1] == "FallbackWarning" else getattr(builtins, told[1])
    return kind, " ".join(line.lstrip("# ") for line in told[2].splitlines())


def run(snippet: Snippet, page: Path, names: dict) -> None:
    # The line numbers of the page, for whoever reads a traceback.
    code = compile("\n" * snippet.line + snippet.code, str(page), "exec")
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        if (told := ending(snippet.code)) is None:
            exec(code, names)
        elif issubclass(told[0], Warning):
            exec(code, names)
            assert [str(w.message) for w in warned if w.category is told[0]] == [told[1]]
        else:
            with pytest.raises(told[0], match=re.escape(told[1])):
                exec(code, names)
    expected = re.findall(r"^ *print\(.*\)  # (.+)$", snippet.code, re.MULTILINE)
    if expected:
        assert printed.getvalue().splitlines() == expected


@pytest.mark.skipif(not (ON_TINY and is_host()), reason="they are written for the CPU")
@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=lambda page: page.name)
def test_snippets_do_what_stands_beside_them(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ops, "_warned", set())
    torch.tiny.reset_stats()
    with torch.tiny.compile_mode("auto"):
        run_page(page, tmp_path)


def run_page(page: Path, folder: Path) -> None:
    names = {"__name__": "__main__"}
    for snippet in snippets(page):
        if snippet.told.startswith("from "):
            assert snippet.code in (ROOT / snippet.told.removeprefix("from ")).read_text()
        elif snippet.told == "torchrun":
            program = folder / "train.py"
            program.write_text(snippet.code)
            torchrun(2, str(program))
        else:
            run(snippet, page, names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]
