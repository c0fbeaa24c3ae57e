"""`pytest -p ecosystem.table ecosystem --table docs/ecosystem.md` writes what was run and how it went as a page.

Files that were not run keep what the page says of them: some libraries are built for another torch than the others.
"""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from pathlib import Path

import torch

INTRODUCTION = """# What works on the device

Made by `make ecosystem-table` from what its tests did: a row for each, nothing that no test runs. "works" is the same
result as on the CPU; "refused" is an error with the message that the test expects. What is slower than the CPU is said
where it was measured (`ecosystem/test_speed.py`), and what PyTorch refuses for every device out of its tree in
`tests/pytorch/test_refused_everywhere.py`, with the line that refuses.
"""


def pytest_addoption(parser):
    parser.addoption("--table", help="write a page of what was run")


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        path, _, name = report.nodeid.partition("::")
        COLLECTED[path][name] = report.outcome
        for word, value in report.user_properties:
            if word == "said":
                SAID[path, name] = value
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            REASONS[path, name.partition("[")[0]] = report.longrepr[2].removeprefix("Skipped: ")


COLLECTED: dict[str, dict[str, str]] = defaultdict(dict)
REASONS: dict[tuple[str, str], str] = {}  # why tests were not run
SAID: dict[tuple[str, str], str] = {}  # what a test has to say of its outcome: `record_property("said", ...)`


def pytest_sessionfinish(session):
    if target := session.config.getoption("--table"):
        page = Path(target)
        sections = kept(page.read_text() if page.exists() else "")
        sections |= {path: section(path, outcomes) for path, outcomes in COLLECTED.items()}
        page.write_text("\n".join([INTRODUCTION, *(sections[path] for path in sorted(sections))]))


def kept(page: str) -> dict[str, str]:
    """The sections of a page by the files they tell of, as long as there are such files."""
    found = {
        re.findall(r"^`(\S+)`", part, re.MULTILINE)[0]: f"## {part.rstrip()}\n" for part in page.split("\n## ")[1:]
    }
    return {path: text for path, text in found.items() if Path(path).exists()}


def section(path: str, outcomes: dict[str, str]) -> str:
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    lines = [
        f"## {' '.join((module.__doc__ or path).split())}",
        "",
        f"`{path}`, torch {torch.__version__.partition('+')[0]}",
        "",
        "| what | |",
        "| --- | --- |",
    ]
    families: dict[str, dict[str, str]] = defaultdict(dict)
    spoken = {name: text for (file, name), text in SAID.items() if file == path}
    for name, text in spoken.items():
        lines.append(f"| {name.partition('[')[2].rstrip(']') or plain(name)} | {text} |")
    for name, outcome in outcomes.items():
        if name in spoken:
            continue
        family, _, case = name.partition("[")
        families[family][case.rstrip("]")] = outcome
    for family, cases in families.items():
        lines.append(f"| {plain(family)} | {told(family, cases)}{said(module, family)}{why(path, family)} |")
    return "\n".join([*lines, ""])


def plain(family: str) -> str:
    return " ".join(part.removeprefix("test_") for part in family.split("::")).replace("_", " ")


def said(module, family: str) -> str:
    """The message of a refusal, where the test has it in its first line."""
    function = module
    for part in family.split("::"):
        function = getattr(function, part, None)
    text = " ".join((getattr(function, "__doc__", None) or "").split())
    return f": {text}" if "refused" in family and text else ""


def why(path: str, family: str) -> str:
    reason = REASONS.get((path, family))
    return f" ({reason})" if reason else ""


def told(family: str, cases: dict[str, str]) -> str:
    good = "refused" if "refused" in family else "works"
    words = {"passed": good, "failed": "**does not work**", "skipped": "not run here"}
    if len(cases) == 1:
        return words[next(iter(cases.values()))]
    groups = defaultdict(list)
    for case, outcome in cases.items():
        groups[words[outcome]].append(case)
    return "; ".join(f"{word}: {', '.join(names)}" for word, names in groups.items())
