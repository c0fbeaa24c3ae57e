"""Which room may import what is said by the table in docs/architecture.md. Here every module is parsed, none imported,
and held against it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "torch_tinygrad"
FILES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))

# What the table does not allow and is there, with the reason. There is none: one that comes needs a good reason.
EXCEPTIONS: dict[tuple[str, str], str] = {}

# What runs before anything is compiled: importing these imports no tinygrad.
START = [name for name in FILES if "/" not in name and name != "target.py"]
START += [name for name in FILES if name.startswith(("trace/", "service/", "conformance/"))]


class Import(NamedTuple):
    target: str  # a file of ours, or the dotted name of a module or of a thing in it
    at_start: bool  # when the module is imported, not in a function


def file_of(dotted: tuple[str, ...]) -> str | None:
    """The file of a module of ours, or None for a name that a module defines."""
    path = "/".join(dotted)
    return next((name for name in (f"{path}.py", f"{path}/__init__.py".lstrip("/")) if name in FILES), None)


@cache
def imports(file: str) -> tuple[Import, ...]:
    tree = ast.parse((PACKAGE / file).read_text())
    later = {
        inner
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in ast.walk(function)
    }
    here = tuple(Path("torch_tinygrad", file).parent.parts)
    found = []
    for node in ast.walk(tree):
        names: list[tuple[str, ...]] = []
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                module = here[: len(here) - node.level + 1] + module
            names = [(*module, alias.name) for alias in node.names]
        for name in names:
            if name[0] == "torch_tinygrad":
                ours = file_of(name[1:]) or file_of(name[1:-1])
                target = "_C" if name[1:2] == ("_C",) else ours
                assert target, f"{file} imports {'.'.join(name)}, which is nowhere"
            else:
                target = ".".join(name)
            found.append(Import(target, node not in later))
    return tuple(found)


def room_of(file: str) -> str:
    """As the table names it: a folder, or a file of the top level."""
    return file.split("/")[0] + "/" if "/" in file else file


@cache
def table() -> dict[str, set[str]]:
    """What each room, or a file in it that has a row of its own, may import: `trace/`, `target.py`, `tinygrad.uop`."""
    page = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| `torch_tinygrad/(\S*)` \|[^|]*\|([^|]*)\|([^|]*)\|$", page, re.MULTILINE)
    quoted = re.compile(r"`([^`]+)`").findall
    return {room: {*quoted(ours), *(f"tinygrad.{name}" for name in quoted(theirs))} for room, ours, theirs in rows}


def row_of(file: str) -> set[str]:
    return table()[next(name for name in (file, room_of(file), "") if name in table())]


def beyond(file: str) -> Iterator[str]:
    """What a file imports that its row does not name."""
    room, allowed = room_of(file), row_of(file)
    for target, _ in imports(file):
        if target.split(".")[0] == "tinygrad":
            name = ".".join(target.split(".")[:2])
            if name not in allowed and "tinygrad.*" not in allowed:
                yield name
        elif target in FILES or target == "_C":
            same = room_of(target) == room or not (target == "_C" or "/" in room + target)
            if not same and room_of(target) not in allowed:
                yield room_of(target)


def test_every_room_has_a_row():
    rooms = {room_of(name) for name in FILES if "/" in name}
    assert {*rooms, "csrc/", ""} == {name for name in table() if not name.endswith(".py")}
    assert {name for name in table() if name.endswith(".py")} <= set(FILES)


@pytest.mark.parametrize("room", [*sorted({room_of(name) for name in FILES if "/" in name}), "the top level"])
def test_a_room_imports_what_its_row_allows(room):
    files = [name for name in FILES if (room_of(name) == room if "/" in room else "/" not in name)]
    found = {(name, other) for name in files for other in beyond(name)}
    assert not found - set(EXCEPTIONS), "not in the table of docs/architecture.md"


def test_every_exception_is_still_one():
    gone = [(name, other) for name, other in EXCEPTIONS if name not in FILES or other not in set(beyond(name))]
    assert not gone, "remove these from EXCEPTIONS"


def loaded_with(file: str) -> dict[str, str]:
    """All files of ours that importing one imports, each with the file that asked for it."""
    asked = {file: "", "__init__.py": file}
    pending = [file, "__init__.py"]
    while pending:
        name = pending.pop()
        folder = f"{name.rpartition('/')[0]}/__init__.py"
        for target in [folder, *(i.target for i in imports(name) if i.at_start)]:
            if target in FILES and target not in asked:
                asked[target] = name
                pending.append(target)
    return asked


@pytest.mark.parametrize("file", START)
def test_what_runs_at_the_start_imports_no_tinygrad(file):
    for name, asker in loaded_with(file).items():
        direct = [i.target for i in imports(name) if i.at_start and i.target.split(".")[0] == "tinygrad"]
        assert not direct, f"{name}, imported by {asker or 'itself'}"
