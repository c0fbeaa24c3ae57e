"""What the parts that run alone share: their command line, and the form of what they found."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy


@dataclass
class Table:
    """Rows under columns, with a title and a sentence on how to read them."""

    title: str
    says: str
    columns: list[str]
    rows: list[list[Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, *cells: Any) -> None:
        self.rows.append(list(cells))
        print("  " + "  ".join(str(cell) for cell in cells), flush=True)


def run(measure: Callable[[bool], Table], description: str | None) -> None:
    """The command line of a part: `--quick` for small sizes, `--json FILE` for what the suite reads."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything run?")
    parser.add_argument("--json", metavar="FILE", help="write the table there")
    arguments = parser.parse_args()
    table = measure(arguments.quick)
    from .report import part_table

    print("\n" + part_table("", table.__dict__))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(table.__dict__))


def said(program: str, word: str, environment: dict[str, str] | None = None) -> list[str]:
    """What a program, in a process of its own, prints after this word."""
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith(word)]
    if not found:
        raise RuntimeError(f"the step did not run: {done.stderr[-800:]}")
    return found[0]


def exponent(sizes: list[int], times: list[float]) -> float:
    """The power of size that time grows with: the slope of a line through the logarithms."""
    return float(numpy.polyfit(numpy.log(sizes), numpy.log(times), 1)[0])
