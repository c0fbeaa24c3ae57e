"""Random programs of tensors, views and writes as lines of Python, run side by side on both devices.

The grammar only looks at the CPU's side, so a program depends on the choices alone. Every number stays exact (small
integers, powers of two), so that results do not depend on the order of rounding; what the CPU itself leaves undefined
(writes whose source partly overlaps their target, elements written twice by one operation) is not generated.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

import torch

from tests.differential import DEVICE, assert_same_error, compare_metadata, data, flush, raised_by

SHAPES = ((6,), (2, 3), (4, 4), (3, 2, 2), (1, 5), ())
DTYPES = (torch.float32, torch.float32, torch.int64, torch.uint8, torch.float16, torch.bool, torch.int32, torch.float64)
INTEGERS = (torch.int32, torch.int64, torch.uint8)
MOST_LIVE, MOST_ELEMENTS = 7, 48


class Choice(Protocol):
    """Where decisions come from: a random generator or hypothesis."""

    def integer(self, low: int, high: int) -> int: ...

    def pick(self, options: Any) -> Any: ...


class RandomChoice:
    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def pick(self, options):
        return self.random.choice(options)


# -------------------------------------------------------------------------------------------------------- both sides


class Pair:
    """One program running on both devices, line by line. Raises AssertionError where they differ."""

    def __init__(self, compare_each: bool = False):
        shared = {"torch": torch, "data": data}
        self.cpu = {**shared, "device": "cpu", "flush": lambda: None}
        self.tiny = {**shared, "device": DEVICE, "flush": flush}
        self.lines: list[str] = []
        self.compare_each = compare_each
        self.made = 0

    def live(self) -> list[str]:
        return [name for name, value in self.cpu.items() if isinstance(value, torch.Tensor)]

    def new_name(self) -> str:
        self.made += 1
        return f"t{self.made}"

    def run(self, line: str) -> None:
        """Runs a line on both sides; exceptions, results and metadata of every live tensor must agree."""
        self.lines.append(line)
        code = compile(line, "<program>", "exec")
        refused = raised_by(lambda: exec(code, self.cpu))
        if refused is not None and "out of bounds" in str(refused):
            return  # an index beyond its dimension is a value, which tiny does not look at when it records
        errors = [refused, raised_by(lambda: exec(code, self.tiny))]
        assert_same_error(*errors, line)
        self.compare_metadata(line)
        if line.startswith("read") and errors[0] is None:
            torch.testing.assert_close(self.tiny["read"], self.cpu["read"], equal_nan=True)
        if self.compare_each or line == "flush()":
            self.compare_values()

    def compare_metadata(self, line: str) -> None:
        names = self.live()
        here = [name for name, value in self.tiny.items() if isinstance(value, torch.Tensor)]
        assert names == here, f"{line}: live are {names} and {here}"
        compare_metadata(names, [self.cpu[n] for n in names], [self.tiny[n] for n in names], line)

    def compare_values(self) -> None:
        """Compares whole storages: geometry is known to agree, and a flat read needs no kernel of its own."""
        seen = set()
        for name in self.live():
            c, t = self.cpu[name], self.tiny[name]
            if c.untyped_storage()._cdata in seen:
                continue
            seen.add(c.untyped_storage()._cdata)
            try:
                flat = [flat_storage(x).cpu() for x in (t, c)]
            except Exception as error:
                raise AssertionError(f"storage of {name} cannot be read: {type(error).__name__}: {error}") from error
            torch.testing.assert_close(*flat, equal_nan=True, msg=lambda m, name=name: f"storage of {name}: {m}")


def flat_storage(t: torch.Tensor) -> torch.Tensor:
    """All of a tensor's storage as a vector of its dtype."""
    storage = t.untyped_storage()
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(
        storage, 0, (storage.nbytes() // t.element_size(),), (1,)
    )


def replay(program: str, compare_each: bool = False) -> Pair:
    """Runs a program given as text: how a reproducer is written down as a test."""
    pair = Pair(compare_each)
    for line in filter(None, map(str.strip, program.splitlines())):
        pair.run(line)
    pair.compare_values()
    return pair


def fails(lines: list[str]) -> str | None:
    """How a program fails, or None. Lines that use a name no line made raise alike on both sides."""
    try:
        replay("\n".join(lines))
    except AssertionError as error:
        return str(error)
    return None


def minimal(lines: list[str], still_fails: Callable[[list[str]], str | None] = fails, tries: int = 200) -> list[str]:
    """Drops lines, in halving chunks, while the program still fails."""
    chunk = max(len(lines) // 2, 1)
    while chunk:
        position = 0
        while position < len(lines) and tries > 0:
            tries -= 1
            shorter = lines[:position] + lines[position + chunk :]
            if shorter and still_fails(shorter):
                lines = shorter
            else:
                position += chunk
        chunk //= 2
    return lines


# ---------------------------------------------------------------------------------------------------------- geometry


def places(t: torch.Tensor) -> list[int]:
    """The byte address of every element."""
    count = t.untyped_storage().nbytes() // t.element_size()
    return (
        torch.arange(count).as_strided(t.size(), t.stride(), t.storage_offset()).flatten() * t.element_size()
    ).tolist()


def writes_itself_twice(t: torch.Tensor) -> bool:
    where = places(t)
    return len(set(where)) < len(where)


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def source(pair: Pair, choice: Choice, target: torch.Tensor, shape: tuple[int, ...]) -> str:
    """An expression for a tensor that can be copied into `shape` of `target`'s dtype without undefined conversions."""
    fitting = [n for n in pair.live() if broadcasts(pair.cpu[n].shape, shape)]
    if not fitting or choice.integer(0, 2) == 0:
        cut = shape[choice.integer(0, len(shape)) :]
        return values(cut, choice.pick(safe_sources(target)), choice.integer(0, 3))
    name = choice.pick(fitting)
    from_float = pair.cpu[name].is_floating_point() and not target.is_floating_point()
    text = f"{name}.clamp(0, 100)" if from_float else name
    return text if from_float or not share_memory(pair.cpu[name], target) else f"{name}.clone()"


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> str:
    """An expression for a fresh tensor of small numbers."""
    return f"data({''.join(f'{s}, ' for s in shape)}dtype={dtype}, seed={seed}, device=device)"


def safe_sources(target: torch.Tensor) -> list[torch.dtype]:
    return [target.dtype, torch.uint8, torch.bool]


def broadcasts(shape, to) -> bool:
    return len(shape) <= len(to) and all(s in (1, t) for s, t in zip(reversed(shape), reversed(to), strict=False))


# ------------------------------------------------------------------------------------------------------------ makers
# Each takes the running program and a source of choices, and returns a line (or None where nothing fits).


def make(pair: Pair, choice: Choice) -> str:
    name, shape, dtype = pair.new_name(), choice.pick(SHAPES), choice.pick(DTYPES)
    seed, layout = choice.integer(0, 3), choice.pick(("dense", "dense", "gaps", "permuted", "zeros"))
    if layout == "zeros" or not shape:
        return f"{name} = torch.zeros({shape}, dtype={dtype}, device=device)"
    if layout == "gaps":
        wide = (*shape[:-1], shape[-1] * 2 + 1)
        return f"{name} = {values(wide, dtype, seed)}[..., 1::2]"
    return f"{name} = {values(shape, dtype, seed)}" + (
        f".permute({tuple(reversed(range(len(shape))))})" if layout == "permuted" else ""
    )


def an_index(choice: Choice, size: int) -> str:
    """One dimension's index: a slice, with steps, or an integer."""
    low = choice.integer(0, max(size - 1, 0))
    high = choice.integer(low, size)
    return choice.pick((":", f"{low}:", f"{low}:{high}", f"::{choice.integer(1, 3)}", f"{low}::2", f"{low - size}"))


def view(pair: Pair, choice: Choice) -> str:
    name = choice.pick(pair.live())
    t, dims = pair.cpu[name], pair.cpu[name].dim()
    options = [".detach()", ".unsqueeze(-1)", ".squeeze()", ".view(-1)", "[None]", "[...]", ".expand(2, *{n}.shape)"]
    if dims:
        dim, other = choice.integer(-dims, dims - 1), choice.integer(0, dims - 1)
        size = t.size(dim)
        start = choice.integer(0, size)
        options += [
            f"[{', '.join(an_index(choice, s) for s in t.shape[: choice.integer(1, dims)])}]",
            f"[..., {an_index(choice, t.size(-1))}]",
            f".select({dim}, {choice.integer(0, size)})",
            f".narrow({dim}, {start}, {choice.integer(0, size - start)})",
            f".transpose({dim}, {other})",
            ".reshape(-1)",
            f".unfold({dim}, {choice.integer(1, size + 1)}, {choice.integer(1, 2)})",
            f".chunk(2, {dim})[-1]",
            f".unbind({dim})[0]",
            f".flatten({choice.integer(0, dims - 1)})",
            ".view({m})",
            as_strided(choice, t),
        ]
    if dims >= 2:
        options += [f".diagonal({choice.integer(-1, 2)}, {choice.integer(0, dims - 2)}, -1)", ".mT", ".movedim(0, -1)"]
    if t.dtype in INTEGERS:
        options.append(f".view({choice.pick(INTEGERS)})")
    text = choice.pick(options).replace("{n}", name).replace("{m}", str((-1, 2) if t.numel() % 2 == 0 else (-1,)))
    return f"{pair.new_name()} = {name}{text}"


def as_strided(choice: Choice, t: torch.Tensor) -> str:
    count = max(t.untyped_storage().nbytes() // t.element_size(), 1)
    size = tuple(choice.integer(1, 3) for _ in range(choice.integer(1, 3)))
    stride = tuple(choice.integer(0, 4) for _ in size)
    return f".as_strided({size}, {stride}, {choice.integer(0, count - 1)})"


IN_PLACE = (
    "add_(3)", "sub_(2)", "mul_(-1)", "mul_(0.5)", "mul_(2)", "neg_()", "zero_()", "fill_(5)", "abs_()",
    "logical_not_()", "bitwise_xor_(3)", "masked_fill_({n} > 0, -2)", "clamp_min_(1)", "floor_()", "sign_()", "triu_()",
    "clamp_(-4, 4)", "t_()", "unsqueeze_(0)", "squeeze_()", "eq_(1)", "fill_diagonal_(7)",
)  # fmt: skip


def write(pair: Pair, choice: Choice) -> str | None:
    """An in-place operation with numbers."""
    name = choice.pick(pair.live())
    repeats = writes_itself_twice(pair.cpu[name])
    operation = choice.pick(("zero_()", "fill_(5)") if repeats else IN_PLACE)
    return f"{name}.{operation.replace('{n}', name)}"


def combine(pair: Pair, choice: Choice) -> str | None:
    """An in-place operation with another tensor."""
    name = choice.pick(pair.live())
    t = pair.cpu[name]
    if writes_itself_twice(t):
        return None
    operation = choice.pick(("add_", "sub_", "copy_", "copy_", "add_"))
    return f"{name}.{operation}({source(pair, choice, t, tuple(t.shape))})"


def assign(pair: Pair, choice: Choice) -> str | None:
    """`t[...] = value` in its many forms."""
    name = choice.pick(pair.live())
    t = pair.cpu[name]
    if writes_itself_twice(t):
        return None
    forms = ["...", f"{name} > {choice.integer(-2, 4)}", "None"]
    if t.dim():
        forms += [", ".join(an_index(choice, s) for s in t.shape[: choice.integer(1, t.dim())])] * 4
        forms.append(unique_indices(choice, t.size(0)))
        forms.append(f"..., {an_index(choice, t.size(-1))}")
        forms.append(f"{name}.select(-1, 0) > 0" if t.dim() > 1 and t.size(-1) else "0")
    form = choice.pick(forms)
    if " > " in form or choice.integer(0, 1):
        return f"{name}[{form}] = {choice.pick((1, -3, 2.5, True))}"
    try:
        region = eval(f"{name}[{form}]", {**pair.cpu})
    except (IndexError, RuntimeError):
        return f"{name}[{form}] = 4"
    return f"{name}[{form}] = {source(pair, choice, t, tuple(region.shape))}"


def unique_indices(choice: Choice, size: int) -> str:
    """A tensor of distinct indices below `size`, some counted from the end."""
    order = choice.pick(((0, 2, 1), (1, 0), (2,), (0,), ()))
    return f"torch.tensor({[i - size if i == 1 else i for i in order if i < size]}, dtype=torch.int64, device=device)"


def indexed_write(pair: Pair, choice: Choice) -> str | None:
    """`index_copy_` and its relatives."""
    name = choice.pick([n for n in pair.live() if pair.cpu[n].dim()] or [None])
    if name is None or writes_itself_twice(pair.cpu[name]):
        return None
    t = pair.cpu[name]
    dim = choice.integer(0, t.dim() - 1)
    count = choice.integer(1, max(t.size(dim), 1))
    index = f"torch.arange({count}, device=device).flip(0)"
    shape = tuple(count if d == dim else s for d, s in enumerate(t.shape))
    fresh = values(shape, t.dtype, choice.integer(0, 3))
    few = min(t.numel(), 3)
    spread = f"{index}.view({tuple(-1 if d == dim else 1 for d in range(t.dim()))}).expand({shape})"
    return choice.pick(
        (
            f"{name}.index_copy_({dim}, {index}, {fresh})",
            f"{name}.index_add_({dim}, {index} // 2, {fresh})",
            f"{name}.index_fill_({dim}, {index}, 3)",
            f"{name}.scatter_({dim}, {spread}, {fresh})",
            f"{name}.scatter_add_({dim}, {spread} // 2, {fresh})",
            f"{name}.masked_scatter_({name} > 1, {values((t.numel(),), t.dtype, 1)})",
            f"{name}.put_(torch.arange({few}, device=device), {values((few,), t.dtype, 2)})",
        )
    )


COMPUTE = (
    "{a} + {b}", "{a} - {b}", "torch.where({a} > {b}, {a}, {b})", "{a}.clone()", "{a} * 2", "-{a}", "{a}.contiguous()",
    "{a}.flip(0)", "torch.maximum({a}, {b})", "{a}.to(torch.float32)", "{a}.t().clone()", "torch.cat([{a}, {a}], -1)",
    "{a}.clamp(-16, 16).sum(-1)", "{a}.clamp(-16, 16).sum()", "torch.stack([{a}, {a}])", "{a}.ne({b})", "{a}.amax(0)",
    "{a}[torch.tensor([0, 0], device=device)]", "{a}.repeat_interleave(2, 0)", "torch.tril({a})", "{a}.roll(1, 0)",
    "{a}.index_select(0, torch.tensor([0], device=device))", "torch.empty_like({a}).copy_({a})", "{a}.new_zeros(3)",
)  # fmt: skip


def compute(pair: Pair, choice: Choice) -> str | None:
    """A new tensor from one or two others."""
    names = [n for n in pair.live() if pair.cpu[n].numel() <= MOST_ELEMENTS]
    if not names:
        return None
    text = choice.pick(COMPUTE).replace("{a}", choice.pick(names)).replace("{b}", choice.pick(names))
    return f"{pair.new_name()} = {text}"


def read(pair: Pair, choice: Choice) -> str:
    return f"read = {choice.pick(pair.live())}.tolist()"


def delete(pair: Pair, choice: Choice) -> str:
    return f"del {choice.pick(pair.live())}"


def flush_line(pair: Pair, choice: Choice) -> str:
    return "flush()"


KINDS: dict[str, tuple[Callable, int]] = {
    "make": (make, 2),
    "view": (view, 8),
    "write": (write, 6),
    "combine": (combine, 4),
    "assign": (assign, 5),
    "indexed_write": (indexed_write, 2),
    "compute": (compute, 3),
    "delete": (delete, 2),
    "read": (read, 1),
    "flush": (flush_line, 1),
}


def step(pair: Pair, choice: Choice, kind: str) -> None:
    """Runs one random line of this kind; what does not fit becomes a view, a full house a deletion."""
    live = pair.live()
    if not live:
        kind = "make"
    elif len(live) >= MOST_LIVE and kind in ("make", "view", "compute"):
        kind = "delete"
    line = KINDS[kind][0](pair, choice)
    if line is None:
        line = view(pair, choice)
    pair.run(line)


def random_program(seed: int, steps: int = 30) -> Pair:
    """Runs the program of a seed; an AssertionError carries its lines."""
    choice, pair = RandomChoice(seed), Pair()
    kinds = [kind for kind, (_, weight) in KINDS.items() for _ in range(weight)]
    try:
        for _ in range(choice.integer(5, steps)):
            step(pair, choice, choice.pick(kinds))
        pair.compare_values()
    except AssertionError as error:
        raise Different(pair.lines, str(error)) from error
    return pair


class Different(AssertionError):
    """The devices disagree; carries the program."""

    def __init__(self, lines: list[str], message: str):
        super().__init__(message)
        self.lines = lines
