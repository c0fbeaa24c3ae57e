"""One program for traces that differ in sizes alone.

A family of traces is known by a few members. Which of their integers vary on their own, and how the others follow, is
guessed from these (trace/relations.py); then the family is compiled at a few points: a usual one, and the corners of a
range of each variable, so chosen that nothing divides at all of them by chance. Choices by size are made at the first
point for all (trace/decisions.py). What comes out must be alike: the same steps, kernels whose sources differ in
numbers alone (sources.py). Each number that differs is a polynomial in the variables, and becomes an entry of a table
that kernels read, or an integer that the runtime fills in (csrc/sizes/sizes.cpp).

What a compiler decides by comparing sums of products of sizes it decides alike everywhere between corners at which it
decides alike. What it decides by divisors it does not; the one place where a wrong guess would be a wrong value, that
two regions do not meet, is therefore proved for every size in the range."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import NamedTuple

import numpy
from tinygrad import Device
from tinygrad.helpers import Context, to_tuple
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import Ops, UOp

from torch_tinygrad import _C
from torch_tinygrad.trace.decisions import Decisions, Diverged, deciding
from torch_tinygrad.trace.geometry import reachable
from torch_tinygrad.trace.integers import counts, integers, kinds, with_integers
from torch_tinygrad.trace.nodes import Trace
from torch_tinygrad.trace.polynomials import Polynomial, constant, through, with_sum
from torch_tinygrad.trace.ranges import Box, boxes, corners
from torch_tinygrad.trace.relations import Relation, Unrelated, relate
from torch_tinygrad.trace.repeats import Repeats, cut_short, of_length, runs
from torch_tinygrad.values.graph import NodeError

from . import choices, host
from .compile import compiling, scheduled
from .devices import device_name
from .images import image_of
from .kernels import rendered
from .schedule import Schedule
from .sources import Table, Unlike, unified

# Sizes at which a claim about regions is tried out at most: beyond, the family is compiled size by size.
MOST_TRIED = 200_000


class Way(NamedTuple):
    """How kernels are written. Cuts of loops and vectors in memory may need what not every size divides by."""

    plain_loops: bool = False
    most_cuts: int = 99
    vectors: bool = True


WAYS = (Way(), Way(vectors=False), Way(most_cuts=1), Way(True, vectors=False), Way(True, 0, vectors=False))

Point = tuple[int, ...]


class NotVariable(Exception):
    """There is no one program for these traces. The text is the reason."""


@dataclass
class Member:
    """The family at one point."""

    trace: Trace
    decisions: Decisions
    schedule: Schedule


def compile_sizes(trace: Trace, seen: list[list[int]], varying: list[int], device_index: int) -> _C.SizedProgram:
    """The program of a trace and all that are like it. `seen` are the integers of some of them, this one's last."""
    own, (first, period, count) = seen[-1], seen[-1][-3:]
    repeats = None
    if count:
        trace, repeats = cut_short(trace, first, period, count)
    numbers = len(trace.numbers)
    where = kinds(trace, numbers)
    if [*integers(trace, numbers), first, period, count] != own:
        raise NotVariable("the trace's integers are listed in another order than the recorder's")
    try:
        relation = relate(seen, where)
        tried = boxes(relation, own, where)
    except Unrelated as error:
        raise NotVariable(str(error)) from None
    changing = {p - where.numbers.start for p in (*relation.forms, *relation.loose) if p in where.numbers}
    reason: Exception = NotVariable("no range of sizes to try")
    for related, box in tried:
        try:
            with compiling():
                return _compiled(
                    trace, own, related, {*varying, *changing}, box, device_name(device_index), where.numbers, repeats
                )
        except (NotVariable, Diverged, Unlike, NodeError) as error:  # a node may not suit sizes that never come
            reason = error
    raise NotVariable(str(reason)) from reason


def _points(box: Box) -> list[Point]:
    """The usual one, then the corners."""
    return [tuple(usual for _, usual, _ in box), *corners(box)]


def _values_at(point: Point, relation: Relation, own: list[int]) -> list[int]:
    """The integers of the family's member there."""
    return [relation.forms[p](point) if p in relation.forms else v for p, v in enumerate(own)]


def _members(
    trace: Trace,
    at_points: list[list[int]],
    varying: set[int],
    device: str,
    numbers: int,
    repeats: Repeats | None,
) -> list[Member]:
    """The family's members with these integers, scheduled; choices by size are those of the first."""
    members: list[Member] = []
    for values in at_points:
        first = members[0].decisions if members else None
        with deciding(Decisions(first)) as decisions, Context(SPLIT_REDUCEOP=0):
            at_point, inputs = with_integers(trace, values[:-3], numbers), varying
            if repeats is not None:
                at_point, inputs = of_length(at_point, repeats, values[-1]), varying | repeats.varying(values[-1])
            member = Member(at_point, decisions, scheduled(at_point, inputs, device, compiled=list))
        members.append(member)
        steps = [[call.uop.src[0].op for call in m.schedule.calls] for m in (members[0], member)]
        if steps[0] != steps[1]:
            raise NotVariable("other sizes take other steps")
    return members


def _programs(members: list[Member], device: str, table: Table) -> list[_C.HostProgram]:
    programs = []
    for i, (member, code) in enumerate(zip(members, _with_code(members, device, table), strict=True)):
        with deciding(member.decisions):
            program = host.assemble(member.schedule, code.__getitem__)
        if not member.decisions.is_done():
            raise NotVariable("other sizes take fewer choices")
        program.sizes = table.of(i)
        programs.append(program)
    return programs


def _filled(
    programs: list[_C.HostProgram], points: list[Point], relation: Relation, fractions: Collection[int]
) -> list[tuple[int, tuple]]:
    """The integers of the programs that differ, by position, as polynomials; entries of the table with a fraction are
    none of them."""
    columns = list(zip(*(p.integers() for p in programs), strict=True))
    first_entry, first_estimate = programs[0].first_size(), len(columns) - len(programs[0].moved)
    known: dict[tuple[int, ...], Polynomial | None] = {}
    filled: list[tuple[int, tuple]] = []
    for position, column in enumerate(columns):
        if len(set(column)) == 1 or position - first_entry in fractions:
            continue
        if column not in known:
            known[column] = _through(points, column, relation)
        form = known[column]
        if form is None and position >= first_estimate:  # bytes moved, which are estimates of tinygrad's
            form = through(points[:2], column[:2]) or constant(column[0], len(points[0]))
        if form is None:
            raise NotVariable(f"a size that is no polynomial: {', '.join(map(str, column))} at {_text(points)}")
        filled.append((position, _plain(form)))
    return filled


def _compiled(
    trace: Trace,
    own: list[int],
    relation: Relation,
    varying: set[int],
    box: Box,
    device: str,
    numbers: range,
    repeats: Repeats | None,
) -> _C.SizedProgram:
    points = _points(box)
    at_points = [_values_at(point, relation, own) for point in points]
    members = _members(trace, at_points, varying, device, len(numbers), repeats)
    table = Table()
    programs = _programs(members, device, table)
    _prove_apart(members, points, box)
    base = programs[0]
    free = {numbers.start + p for p in base.lifted if p < len(numbers)}
    loop = None if repeats is None else _inputs_of_loop(programs, repeats, [values[-1] for values in at_points])
    for program in programs[1:]:
        program.description = base.description
    if len({p.skeleton() for p in programs}) != 1:
        raise NotVariable("other sizes lay a program out otherwise")
    if not relation.loose <= free:
        raise NotVariable("a number changes with nothing, and is no input")
    fractions = {entry: values for values, entry in table.fractions.items()}
    sizes = (
        dict.fromkeys((*table.integers, *zip(*(counts(m.trace) for m in members), strict=True))) if fractions else {}
    )
    return _C.SizedProgram(
        base,
        own,
        sorted(free),
        [
            (
                v.position,
                -1 if v.stride is None else v.stride,
                -1 if v.less is None else v.less,
                v.rest,
                v.unit,
                low,
                high,
            )
            for v, (low, _, high) in zip(relation.variables, box, strict=True)
        ],
        [(i, _plain(v.used)) for i, v in enumerate(relation.variables) if v.used is not None],
        [(p, _plain(form)) for p, form in sorted(relation.forms.items()) if p not in free],
        _filled(programs, points, relation, fractions),
        [(entry, *_fraction(values, points, sizes)) for entry, values in sorted(fractions.items())],
        loop,
    )


def _inputs_of_loop(programs: list[_C.HostProgram], repeats: Repeats, counts: list[int]) -> tuple[list, list]:
    """Which numbers are inputs, by type, and how many they are; they are taken out of the programs."""
    found = []
    for kind in ("floats", "ints"):
        by_count = []
        for progressions in zip(*(runs(getattr(p, kind)) for p in programs), strict=False):
            lengths = [length for _, _, length in progressions]
            more = {length - count for length, count in zip(lengths, counts, strict=True)}
            if len({p[:2] for p in progressions}) != 1 or (len(set(lengths)) != 1 and len(more) != 1):
                raise NotVariable("numbers of a loop that are inputs at some lengths only")
            is_counted = len(set(lengths)) != 1
            by_count.append((*progressions[0][:2], more.pop() if is_counted else lengths[0], int(is_counted)))
        if any(len(runs(getattr(p, kind))) != len(by_count) for p in programs):
            raise NotVariable("numbers of a loop that are inputs at some lengths only")
        found.append(by_count)
    for program, count in zip(programs, counts, strict=True):
        if not repeats.varying(count) <= set(program.lifted):
            raise NotVariable("a number that changes from step to step is no input")
        program.floats, program.ints, program.lifted = [], [], []
    return found[0], found[1]


def _through(points: list[Point], column: tuple[int, ...], relation: Relation) -> Polynomial | None:
    """The simplest polynomial there, in the variables; or in the whole of which a variable is what a part leaves."""
    form = through(points, column)
    for v, variable in enumerate(relation.variables):
        if form is None and variable.less is not None:
            part = variable.less
            in_whole = through([(*p[:v], p[v] + p[part], *p[v + 1 :]) for p in points], column)
            form = None if in_whole is None else with_sum(in_whole, v, part)
    return form


def _plain(form: Polynomial) -> tuple[list[tuple[int, list[int]]], int]:
    return [(factor, [*powers, *(0,) * (4 - len(powers))]) for factor, powers in form.terms], form.divisor


def _text(points: Sequence[Point]) -> str:
    return ", ".join(" x ".join(map(str, p)) for p in points)


# ---- kernels ----


def _with_code(members: list[Member], device: str, table: Table) -> list[dict[UOp, host.Code]]:
    """Gives every member its kernels' programs, and tells the code of each, which is the same for all."""
    choices.apply()
    renderer = Device[to_tuple(device)[0]].renderer
    known: dict[tuple, list[tuple[UOp, host.Code]]] = {}
    code: list[dict[UOp, host.Code]] = [{} for _ in members]
    for i, calls in enumerate(zip(*(m.schedule.calls for m in members), strict=True)):
        asts = tuple(call.uop.src[0] for call in calls)
        if asts[0].op is not Ops.SINK:
            continue
        if asts not in known:
            known[asts] = _one_kernel(asts, renderer, table)
        for member, own, call, (program, kernel) in zip(members, code, calls, known[asts], strict=True):
            uop = call.uop.replace(src=(program, *call.uop.src[1:]))
            member.schedule.calls[i] = replace(call, uop=uop)
            own[uop] = kernel
    return code


def _one_kernel(asts: Sequence[UOp], renderer: Renderer, table: Table) -> list[tuple[UOp, host.Code]]:
    """For each member, the kernel's program and its code, in the first of the ways that suits all sizes."""
    for way in WAYS[:-1]:
        try:
            return _rendered_alike(asts, renderer, table, way)
        except (Unlike, Diverged):
            pass
    return _rendered_alike(asts, renderer, table, WAYS[-1])


def _rendered_alike(asts: Sequence[UOp], renderer: Renderer, table: Table, way: Way) -> list[tuple[UOp, host.Code]]:
    renderer = copy(renderer)
    renderer.supports_float4 = renderer.supports_float4 and way.vectors
    programs, elements, first = [], [], None
    for ast in asts:
        with deciding(Decisions(first, way.plain_loops, way.most_cuts)) as decisions, Context(DISABLE_FAST_IDIV=1):
            programs.append(rendered(ast, renderer))
        first = first or decisions
        elements.append(decisions.notes.get("elements", 0))
    sources, names = [p.src[2].arg for p in programs], [p.arg.function_name for p in programs]
    source, takes_sizes = unified(sources, names, table)
    image, imports = image_of(renderer.compiler.compile_cached(source))
    return [(p, host.Code(image, imports, takes_sizes, n)) for p, n in zip(programs, elements, strict=True)]


# ---- proofs ----


def _prove_apart(members: list[Member], points: list[Point], box: Box) -> None:
    """That regions which were found not to meet at the points meet nowhere in the range."""
    claims = [m.decisions.apart for m in members]
    if len({len(c) for c in claims}) != 1:
        raise NotVariable("other sizes compare other regions")
    tried = 0
    for claim in dict.fromkeys(zip(*claims, strict=True)):
        if len(set(claim)) == 1:
            continue
        flat = [(target, *itertools.chain.from_iterable(terms)) for target, terms in claim]
        if len({len(f) for f in flat}) != 1:
            raise NotVariable("other sizes compare other regions")
        forms = [through(points, column) for column in zip(*flat, strict=True)]
        known = [form for form in forms if form is not None]
        matters = [any(powers[v] for form in known for _, powers in form.terms) for v in range(len(box))]
        ranges = [
            range(low, high + 1) if m else range(low, low + 1) for m, (low, _, high) in zip(matters, box, strict=True)
        ]
        tried += prod(map(len, ranges))
        if len(known) < len(forms) or tried > MOST_TRIED:
            raise NotVariable("whether regions meet depends on their sizes")
        for point in itertools.product(*ranges):
            target, *rest = (form(point) for form in known)
            if reachable(target, list(zip(rest[::3], rest[1::3], rest[2::3], strict=True))):
                raise NotVariable("whether regions meet depends on their sizes")


# Numbers with fractions that sizes make, beside parts of them and of their inverses: what is added to a size, to which
# power.
POWERS = (
    ((0, 1.0), (-1, -1.0)),
    ((-1, 1.0), (0, -1.0)),
    ((0, -0.5),),
    ((0, 0.5),),
)
# The parts of a size are at most so many: the rows of an image, where another one's are a size.
MOST_PARTS = 1 << 14


def _fraction(
    values: tuple[float, ...], points: list[Point], sizes: Iterable[tuple[int, ...]]
) -> tuple[float, list[tuple]]:
    """Numbers with fractions as a factor and powers of polynomials, which are sizes that the program has."""
    whole = [tuple(round(v) for v in values)] if all(v == round(v) for v in values) else []
    inverse = [tuple(round(1 / v) for v in values)] if all(values) and max(map(abs, values)) < 1 else []
    for column in (*whole, *inverse, *sizes):
        for factor, powers in _fractions_of(column, values[0]):
            given = [factor] * len(column)
            for base, power in powers:
                given = [g / b if power == -1 else g * b**power for g, b in zip(given, base, strict=True)]
            if any(numpy.float32(g) != numpy.float32(v) for g, v in zip(given, values, strict=True)):
                continue
            forms = [(through(points, base), power) for base, power in powers]
            known = [(_plain(form), power) for form, power in forms if form is not None]
            if len(known) == len(powers):
                return factor, known
    raise NotVariable(f"a number that follows from no size: {', '.join(map(str, values))} at {_text(points)}")


def _fractions_of(column: tuple[int, ...], value: float) -> Iterator[tuple[float, list[tuple[tuple[int, ...], float]]]]:
    """What may be made of a size that is a value at the first point: a factor, and columns with their powers."""
    for more in (0, -1):
        size = tuple(c + more for c in column)
        if min(size) <= 0:
            return
        times, over = (Fraction(v).limit_denominator(MOST_PARTS) for v in (value / size[0], value * size[0]))
        yield times.numerator, [(size, 1.0), ((times.denominator,) * len(size), -1.0)]
        yield over.numerator, [(tuple(c * over.denominator for c in size), -1.0)]
    for powers in POWERS:
        yield 1.0, [(tuple(c + more for c in column), power) for more, power in powers]
