"""The grammar of random programs: tensors of several dtypes and strides, views, writes, deletions and flushes.

It only looks at the CPU's side, so a program depends on the choices alone. Every number stays exact (small integers,
powers of two), so that results do not depend on the order of rounding; what the CPU itself leaves undefined (writes
whose source partly overlaps their target, elements written twice by one operation, bits of computed nans) is not
generated, and neither are indices beyond their dimension in tensors, which are values that tiny does not look at when
it records.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod
from typing import Any, Protocol

import torch

from tests.programs import Different, Pair

SHAPES = ((6,), (2, 3), (4, 4), (3, 2, 2), (1, 5), (), (9,), (5, 2), (40,))
HAS = torch.tiny.get_device_capability()["supported_dtypes"]
FLOATS = tuple(dtype for dtype in (torch.float32, torch.float64, torch.float16) if dtype in HAS)
INTEGERS = (torch.int32, torch.int64, torch.uint8, torch.int16)
DTYPES = (*FLOATS, *INTEGERS, torch.float32, torch.float32, torch.bool, torch.complex64)
LARGE = (180, 190)  # enough for kernels that threads share
MOST_LIVE, MOST_ELEMENTS = 7, 48
MOST_IN_WINDOWS = 1 << 22  # of an unfolded tensor: each alias is compared after each step


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


# ---------------------------------------------------------------------------------------------------------- geometry


def places(t: torch.Tensor) -> list[int]:
    """The byte address of every element."""
    count = elements(t)
    return (
        torch.arange(count).as_strided(t.size(), t.stride(), t.storage_offset()).flatten() * t.element_size()
    ).tolist()


def elements(t: torch.Tensor) -> int:
    """How many of its elements a tensor's storage holds."""
    return t.untyped_storage().nbytes() // t.element_size()


def writes_itself_twice(t: torch.Tensor) -> bool:
    where = places(t)
    return len(set(where)) < len(where)


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def source(pair: Pair, choice: Choice, target: torch.Tensor, shape: tuple[int, ...]) -> str:
    """An expression for a tensor that can be copied into `shape` of `target`'s dtype without undefined conversions."""
    fitting = [n for n in pair.live() if broadcasts(pair.cpu[n].shape, shape)]
    fitting = [n for n in fitting if target.is_complex() or not pair.cpu[n].is_complex()]
    if not fitting or choice.integer(0, 2) == 0:
        cut = shape[choice.integer(0, len(shape)) :]
        return values(cut, choice.pick(safe_sources(target)), choice.integer(0, 3))
    name = choice.pick(fitting)
    from_float = pair.cpu[name].is_floating_point() and not (target.is_floating_point() or target.is_complex())
    text = f"{name}.clamp(0, 100)" if from_float else name
    return text if from_float or not share_memory(pair.cpu[name], target) else f"{name}.clone()"


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> str:
    """An expression for a fresh tensor of small numbers."""
    if dtype is torch.complex64:
        return f"torch.view_as_complex({values((*shape, 2), torch.float32, seed)})"
    return f"data({''.join(f'{s}, ' for s in shape)}dtype={dtype}, seed={seed}, device=device)"


def safe_sources(target: torch.Tensor) -> list[torch.dtype]:
    return [target.dtype, torch.uint8, torch.bool]


def broadcasts(shape, to) -> bool:
    return len(shape) <= len(to) and all(s in (1, t) for s, t in zip(reversed(shape), reversed(to), strict=False))


# ------------------------------------------------------------------------------------------------------------ makers
# Each takes the running program and a source of choices, and returns a line (or None where nothing fits).


def make(pair: Pair, choice: Choice) -> str:
    name, dtype = pair.new_name(), choice.pick(DTYPES)
    shape = choice.pick(SHAPES) if choice.integer(0, 15) else LARGE
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
    options = [".detach()", ".data", ".unsqueeze(-1)", ".squeeze()", ".view(-1)", "[None]", "[...]"]
    options.append(".expand(2, *{n}.shape)")
    if dims:
        dim, other = choice.integer(-dims, dims - 1), choice.integer(0, dims - 1)
        size = t.size(dim)
        start = choice.integer(0, size)
        widest = min(size, max(MOST_IN_WINDOWS // max(t.numel(), 1), 1))
        options += [
            f"[{', '.join(an_index(choice, s) for s in t.shape[: choice.integer(1, dims)])}]",
            f"[..., {an_index(choice, t.size(-1))}]",
            f".select({dim}, {choice.integer(0, size)})",
            f".narrow({dim}, {start}, {choice.integer(0, size - start)})",
            f".transpose({dim}, {other})",
            ".reshape(-1)",
            f".unfold({dim}, {choice.integer(1, widest + 1)}, {choice.integer(1, 2)})",
            f".chunk(2, {dim})[-1]",
            f".split(2, {dim})[0]",
            f".unbind({dim})[0]",
            f".flatten({choice.integer(0, dims - 1)})",
            ".view({m})",
            as_strided("as_strided", choice, t),
        ]
    if dims >= 2:
        options += [f".diagonal({choice.integer(-1, 2)}, {choice.integer(0, dims - 2)}, -1)", ".mT", ".movedim(0, -1)"]
        options.append(f".permute({tuple(reversed(range(dims)))})")
    options += bit_views(choice, t) * 2
    text = choice.pick(options).replace("{n}", name).replace("{m}", str((-1, 2) if t.numel() % 2 == 0 else (-1,)))
    wrapped = text.replace("{}", name) if "{}" in text else f"{name}{text}"
    return f"{pair.new_name()} = {wrapped}"


def bit_views(choice: Choice, t: torch.Tensor) -> list[str]:
    """The same bytes as another dtype."""
    if t.is_complex():
        return ["torch.view_as_real({})", choice.pick(("{}.real", "{}.imag")), f".view({torch.float32})"]
    if t.dtype is torch.float32:
        to = choice.pick((torch.int32, torch.float32, torch.uint8))
        return [
            f".view({to})",
            "torch.view_as_complex({})" if t.dim() and t.size(-1) == 2 else ".view(torch.complex64)",
        ]
    same_width = {torch.float64: torch.int64, torch.float16: torch.int16}
    if t.is_floating_point():
        return [f".view({choice.pick((same_width[t.dtype], torch.uint8))})"]
    return [f".view({choice.pick(INTEGERS)})"] if t.dtype in INTEGERS else []


def as_strided(operator: str, choice: Choice, t: torch.Tensor) -> str:
    size = tuple(choice.integer(1, 3) for _ in range(choice.integer(1, 3)))
    stride = tuple(choice.integer(0, 4) for _ in size)
    return f".{operator}({size}, {stride}, {choice.integer(0, max(elements(t), 1) - 1)})"


def rebind(pair: Pair, choice: Choice) -> str:
    """A tensor that changes its own geometry or storage, or changes places with another."""
    name = choice.pick(pair.live())
    t = pair.cpu[name]
    size = choice.pick(SHAPES)
    options = [".unsqueeze_(0)", ".squeeze_()", as_strided("as_strided_", choice, t), f".resize_({size}).zero_()"]
    options += [".t_()", ".detach_()"]
    if t.dim():
        options.append(f".transpose_({choice.integer(-t.dim(), t.dim() - 1)}, {choice.integer(0, t.dim() - 1)})")
    other = choice.pick(pair.live())
    options.append(f".set_({other})")
    room = elements(t) and pair.cpu[other].untyped_storage().nbytes() // t.element_size()
    if room and (t.dtype is not torch.bool or pair.cpu[other].dtype is torch.bool):
        count = choice.integer(1, room)
        options.append(f".set_({other}.untyped_storage(), {room - count}, ({count},), (1,))")
    swap = f"torch.utils.swap_tensors({name}, {other})"
    text = choice.pick([*options, swap if name != other else ".t_()"])
    return text if text is swap else f"{name}{text}"


IN_PLACE = (
    "add_(3)", "sub_(2)", "mul_(-1)", "mul_(0.5)", "mul_(2)", "neg_()", "zero_()", "fill_(5)", "abs_()",
    "logical_not_()", "bitwise_xor_(3)", "masked_fill_({n} > 0, -2)", "clamp_min_(1)", "floor_()", "sign_()", "triu_()",
    "clamp_(-4, 4)", "eq_(1)", "fill_diagonal_(7)", "tril_(-1)", "nan_to_num_(2)",
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
    if t.dim() > 1:
        forms.append(f"{an_index(choice, t.size(0))}, {unique_indices(choice, t.size(1))}")
        forms.append(f"{unique_indices(choice, t.size(0))}, {an_index(choice, t.size(1))}")
        forms.append(f"{unique_indices(choice, t.size(0))}[:, None], {unique_indices(choice, t.size(1))}")
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
    """`index_copy_` and its relatives. Several updates of one element only where they combine exactly."""
    name = choice.pick([n for n in pair.live() if pair.cpu[n].dim() and pair.cpu[n].numel()] or [None])
    if name is None or writes_itself_twice(pair.cpu[name]):
        return None
    t = pair.cpu[name]
    dim = choice.integer(0, t.dim() - 1)
    count = choice.integer(1, t.size(dim))
    index = f"torch.arange({count}, device=device).flip(0)"
    shape = tuple(count if d == dim else s for d, s in enumerate(t.shape))
    fresh, of_rows = (values(s, t.dtype, choice.integer(0, 3)) for s in (shape, t.shape))
    if choice.integer(0, 3) == 0:  # what is overwritten
        fresh, of_rows = f"{name}.clone().narrow({dim}, 0, {count})", f"{name}.clone()"
    few = min(t.numel(), 3)
    spread = f"{index}.view({tuple(-1 if d == dim else 1 for d in range(t.dim()))}).expand({shape})"
    rows_at = f"(torch.arange({t.size(0)}, device=device).flip(0)"
    # the CPU refuses an order of complex numbers, but only after it has begun to write
    includes = choice.pick((True, False)) or t.is_complex()
    return choice.pick(
        (
            f"{name}.index_copy_({dim}, {index}, {fresh})",
            f"{name}.index_add_({dim}, {index} // 2, {fresh})",
            f"{name}.index_fill_({dim}, {index}, 3)",
            f"{name}.index_reduce_({dim}, {index} // 2, {fresh}, 'amax', include_self={includes})",
            f"{name}.index_put_({rows_at} // 2,), {of_rows}, accumulate=True)",
            f"{name}.index_put_({rows_at},), {of_rows})",
            f"{name}.scatter_({dim}, {spread}, {fresh})",
            f"{name}.scatter_({dim}, {spread}, 2)",
            f"{name}.scatter_({dim}, {spread}, {fresh}, reduce='{choice.pick(('add', 'multiply'))}')",
            f"{name}.scatter_add_({dim}, {spread} // 2, {fresh})",
            f"{name}.scatter_reduce_({dim}, {spread} // 2, {fresh}, '{choice.pick(('sum', 'amin', 'amax'))}', "
            f"include_self={includes})",
            f"{name}.masked_scatter_({name} > 1, {values((t.numel(),), t.dtype, 1)})",
            f"{name}.put_(torch.arange({few}, device=device), {values((few,), t.dtype, 2)})",
            f"{name}.put_(torch.arange({few}, device=device) // 2, {values((few,), t.dtype, 2)}, accumulate=True)",
        )
    )


LOOPS = (
    "{t}[i] = i * 2 + 1", "{t}[i] = {u}[i]", "{t}[i] += {u}[{n} - 1 - i]", "{t}[{n} - 1 - i] = i", "{t}[i:i + 2] = i",
    "{t}[i] = {t}[i - 1] + 1", "{t}[i] = {t}[(i + 1) % {n}]", "{t}[i] = {u}[i] * 2 + i", "{t}.select(0, i).add_(i)",
    "{t}[i] = i; {u}[i] = {n} - i", "{t}[i] = {t}[i - 1] - {u}[i]", "{t}[i] = {u}[i - 1]; {u}[i] = {t}[i] + 1",
    "{t}[i // 2] = i", "{u}[i] = {t}[i]; {t}[i] = 0", "{t}[..., i] = i",
)  # fmt: skip


def loop(pair: Pair, choice: Choice) -> str | None:
    """Many small writes in a row."""
    names = [n for n in pair.live() if pair.cpu[n].dim() and not writes_itself_twice(pair.cpu[n])]
    names = [n for n in names if max(pair.cpu[n].shape) <= max(LARGE)]
    if not names:
        return None
    name = choice.pick(names)
    t = pair.cpu[name]
    alike = [n for n in names if pair.cpu[n].shape == t.shape and not share_memory(pair.cpu[n], t)]
    alike = [n for n in alike if pair.cpu[n].dtype == t.dtype]
    copies = [f"{name}.clone()"] if t.numel() <= MOST_ELEMENTS else []  # each iteration copies all of it
    if not alike + copies:
        return None
    other = choice.pick(alike + copies)
    form = choice.pick(LOOPS)
    count = t.size(-1 if "..." in form else 0)
    return f"for i in range({count}): {form.replace('{t}', name).replace('{u}', other).replace('{n}', str(count))}"


COMPUTE = (
    "{a} + {b}", "{a} - {b}", "torch.where({a} > {b}, {a}, {b})", "{a}.clone()", "{a} * 2", "-{a}", "{a}.contiguous()",
    "{a}.flip(0)", "torch.maximum({a}, {b})", "{a}.to(torch.float32)", "{a}.t().clone()", "torch.cat([{a}, {a}], -1)",
    "{a}.clamp(-16, 16).sum(-1)", "{a}.clamp(-16, 16).sum()", "torch.stack([{a}, {a}])", "{a}.ne({b})", "{a}.amax(0)",
    "{a}[torch.tensor([0, 0], device=device)]", "{a}.repeat_interleave(2, 0)", "torch.tril({a})", "{a}.roll(1, 0)",
    "{a}.index_select(0, torch.tensor([0], device=device))", "torch.empty_like({a}).copy_({a})", "{a}.new_zeros(3)",
    "{a}[{a} > 0]", "{a}.masked_select({a} > 1)", "torch.nonzero({a})", "torch.diag({a})", "torch.diag_embed({a})",
    "{a}.conj()", "torch.select_scatter({a}, {a}.select(0, 0) * 2, 0, -1)", "torch.diagonal_scatter({a}, {a}[0], 0)",
)  # fmt: skip


GROWING = ("cat", "stack", "repeat_interleave", "diag", "[torch.tensor", "nonzero")


def compute(pair: Pair, choice: Choice) -> str | None:
    """A new tensor from one or two others."""
    text = choice.pick(COMPUTE)
    most = MOST_ELEMENTS if any(word in text for word in GROWING) else prod(LARGE)
    names = [n for n in pair.live() if pair.cpu[n].numel() <= most]
    if not names:
        return None
    a, b = choice.pick(names), choice.pick(names)
    if "tensor(" in text and (not pair.cpu[a].dim() or not pair.cpu[a].size(0)):
        return None
    return f"{pair.new_name()} = {text.replace('{a}', a).replace('{b}', b)}"


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
    "indexed_write": (indexed_write, 3),
    "loop": (loop, 2),
    "rebind": (rebind, 2),
    "compute": (compute, 3),
    "delete": (delete, 2),
    "read": (read, 1),
    "flush": (flush_line, 1),
}


def cleared_of_nan(pair: Pair) -> str | None:
    """A line that takes nans away: what arithmetic makes of their bits, which views as integers show, is undefined."""
    for name in pair.live():
        t = pair.cpu[name]
        if (t.is_floating_point() or t.is_complex()) and t.isnan().any():
            return f"del {name}" if t.is_complex() or writes_itself_twice(t) else f"{name}.nan_to_num_(1)"
    return None


def step(pair: Pair, choice: Choice, kind: str) -> None:
    """Runs one random line of this kind; what does not fit becomes a view, a full house a deletion."""
    while (line := cleared_of_nan(pair)) is not None:
        pair.run(line)
    live = pair.live()
    if not live:
        kind = "make"
    elif len(live) >= MOST_LIVE and kind in ("make", "view", "compute"):
        kind = "delete"
    line = KINDS[kind][0](pair, choice)
    if line is None:
        line = view(pair, choice)
    pair.run(line)


def random_program(seed: int, steps: int = 30, make: Callable[[], Pair] = Pair) -> Pair:
    """Runs the program of a seed; an AssertionError carries its lines."""
    choice, pair = RandomChoice(seed), make()
    kinds = [kind for kind, (_, weight) in KINDS.items() for _ in range(weight)]
    try:
        for _ in range(choice.integer(5, steps)):
            step(pair, choice, choice.pick(kinds))
        pair.compare_values()
    except AssertionError as error:
        raise Different(pair.lines, str(error)) from error
    return pair
