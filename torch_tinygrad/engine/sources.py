"""One source for the same kernel at several sizes: where only numbers differ, they become entries of a table.

A kernel of a family of traces is rendered for a few members. The sources must agree in everything but the values of
literals; those that differ are read from the table of sizes, which the program has as one more argument."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"[A-Za-z_]\w*"  # names; those with digits are no numbers
    r"|0[xX][0-9a-fA-F]+[uUlL]*"
    r"|(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?[fF]?"
    r"|\d+[uUlL]*"
    r"|\s+|."
)
_INTEGER = re.compile(r"(\d+)([uUlL]*)$")
_FRACTION = re.compile(r"((?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?)([fF]?)$")
_BUFFER = re.compile(r"\b(data\d+)_\d+\b")  # tinygrad names buffers by their number and their size
_SHIFT = re.compile(r"<<(1?\d)(?!\d)")  # products with powers of two, which other sizes are not
_HEAD = re.compile(r"(void\s+)(\w+)\(([^)]*)(\)\s*\{)")


class Unlike(Exception):
    """The sources differ in more than numbers. The text says where."""


@dataclass
class Table:
    """The values that the kernels of a program read, each for all members: integers, and numbers with fractions, which
    lie in the same table as they are in memory."""

    integers: dict[tuple[int, ...], int] = field(default_factory=dict)
    fractions: dict[tuple[float, ...], int] = field(default_factory=dict)

    def integer(self, values: tuple[int, ...]) -> int:
        return self.integers.setdefault(values, len(self))

    def fraction(self, values: tuple[float, ...]) -> int:
        return self.fractions.setdefault(values, len(self))

    def of(self, member: int) -> list[int]:
        """What one member's program has in it; fractions are filled in later."""
        entries = [0] * len(self)
        for values, entry in self.integers.items():
            entries[entry] = values[member]
        return entries

    def __len__(self) -> int:
        return len(self.integers) + len(self.fractions)


def unified(sources: Sequence[str], names: Sequence[str], table: Table) -> tuple[str, bool]:
    """The source for all members, and whether it reads the table."""
    name = "kernel_" + re.sub(r"\d+", "n", names[0])
    plain = [re.sub(rf"\b{re.escape(n)}\b", name, s) for s, n in zip(sources, names, strict=True)]
    plain = [_BUFFER.sub(r"\1", _SHIFT.sub(lambda m: f"*{1 << int(m[1])}", s)) for s in plain]
    if len(set(plain)) == 1:
        return plain[0], False
    tokens = [_TOKEN.findall(s) for s in plain]
    if len({len(t) for t in tokens}) != 1:
        raise Unlike("kernels that differ in length")
    out: list[str] = []
    used: dict[str, str] = {}
    for column in zip(*tokens, strict=True):
        if len(set(column)) == 1:
            out.append(column[0])
            continue
        if "".join(out[-1:]) == "[" and _is_declared(out):
            raise Unlike("an array whose length is a size")
        local = _local(column, table, used)
        out.append(local)
    head = _HEAD.search(text := "".join(out))
    if head is None:
        raise Unlike("a kernel without a head")
    pointers = [p for p in head[3].split(",") if "*" in p]
    others = [p for p in head[3].split(",") if "*" not in p and p.strip()]
    arguments = ",".join([*pointers, " const long long* restrict sizes", *others])
    declared = "\n".join(used.values())
    return f"{text[: head.start()]}{head[1]}{head[2]}({arguments}{head[4]}\n{declared}{text[head.end() :]}", True


def _is_declared(out: list[str]) -> bool:
    """Whether what was written so far ends in a declaration of an array: a type, a name and a bracket."""
    return re.search(r"[A-Za-z_]\w*\s+[A-Za-z_]\w*\s*\[$", "".join(out[-6:])) is not None


def _local(column: tuple[str, ...], table: Table, used: dict[str, str]) -> str:
    """The name of the local variable that stands for these literals; `used` gets its declaration."""
    for pattern, add in ((_INTEGER, _integer), (_FRACTION, _fraction)):
        parts = [m.groups() for t in column if (m := pattern.match(t)) is not None]
        suffixes = {suffix.lower() for _, suffix in parts}
        if len(parts) == len(column) and len(suffixes) == 1:
            return add([number for number, _ in parts], suffixes.pop(), table, used)
    raise Unlike(f"kernels that differ in {', '.join(sorted(set(column)))[:80]}")


def _integer(numbers: list[str], suffix: str, table: Table, used: dict[str, str]) -> str:
    entry = table.integer(tuple(map(int, numbers)))
    kind = ("unsigned " if "u" in suffix else "") + ("long long" if "l" in suffix else "int")
    name = f"size{entry}{suffix}"
    used[name] = f"  const {kind} {name} = ({kind})sizes[{entry}];"
    return name


def _fraction(numbers: list[str], suffix: str, table: Table, used: dict[str, str]) -> str:
    entry = table.fraction(tuple(map(float, numbers)))
    kind = "float" if suffix else "double"
    name = f"size{entry}{suffix or 'd'}"
    used[name] = f"  const {kind} {name} = ({kind})((const double*)sizes)[{entry}];"
    return name
