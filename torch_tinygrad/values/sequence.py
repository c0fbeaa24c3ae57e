"""One kernel for loops whose iterations need each other's results: they run in turn, element by element.

The operators' own lowerings say what an element is: they are applied to placeholders of one element, and in the
expression that results each placeholder is replaced by what the kernel loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from tinygrad import Tensor
from tinygrad.dtype import DType
from tinygrad.uop.ops import GroupOp, Ops, UOp

from torch_tinygrad.trace.batch import Motion, moves
from torch_tinygrad.trace.forms import schema_of
from torch_tinygrad.trace.geometry import strides_of
from torch_tinygrad.trace.nodes import Lifted, Node, Number, Region
from torch_tinygrad.trace.pointwise import COPY, FILL
from torch_tinygrad.trace.sequence import Rounds, nests

from ..kernels.loops import Loops, run_into
from ..kernels.threads import fresh
from ..lower.registry import LOWERINGS, TO_TINY, Lowering, Meta
from .regions import in_memory
from .storages import Flat

# What leaves a single element as it is.
_LEFT_OUT = {Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.FLIP}


class Unfit(Exception):
    """A loop cannot be written as one kernel."""


@dataclass(frozen=True)
class Way:
    """How something moves: as its motion says from iteration to iteration, of so many, and by `advance` from round to
    round."""

    motion: Motion
    iterations: int
    advance: int
    rounds: int

    def positions(self, first: int) -> list[int]:
        """Of a number, in the order of turns; each once."""
        rounds = range(self.rounds if self.advance else 1)
        iterations = range(self.iterations if self.motion.delta else 1)
        return [first + r * self.advance + i * self.motion.delta for r in rounds for i in iterations]


@dataclass(frozen=True)
class Turn:
    """Which round it is, and which iteration of a loop."""

    round: UOp
    iteration: UOp

    def moved(self, way: Way) -> UOp:
        return self.round * way.advance + self.iteration * way.motion.delta


@dataclass(frozen=True)
class Operand:
    """A placeholder and what stands there: elements of a region or numbers of the flush's table."""

    placeholder: UOp
    part: Region | Lifted
    way: Way
    dtype: DType


@dataclass(frozen=True)
class Statement:
    """A node: one element of every result as an expression of placeholders."""

    operands: list[Operand]
    results: list[tuple[Region, Way, UOp]]


@dataclass(frozen=True)
class Numbers:
    """How numbers get into a kernel: whether that of an argument is one of the program's inputs, as which dtype it
    takes part, and where positions of the flush's table are in an input once they are added to it."""

    is_input: Callable[[Node, int, list[int]], bool]
    dtype: Callable[[Node, bool], DType]
    table: Callable[[list[int], bool], tuple[Tensor, int]]


def can_sequence(node: Node) -> bool:
    return node.op in LOWERINGS


def _placeholder(device: str, dtype: DType, rank: int) -> Tensor:
    return Tensor(UOp.new_buffer(device, 1, dtype)).reshape((1,) * rank)


def _statement(node: Node, ways: list[Way], numbers: Numbers, device: str, schema) -> Statement:
    lowering: Lowering = LOWERINGS[node.op]
    operands: list[Operand] = []
    moving = iter(ways)

    def stand_in(part: Region | Lifted, way: Way, dtype: DType) -> Tensor:
        value = _placeholder(device, dtype, len(part.size))
        operands.append(Operand(value.uop.base, part, way, dtype))
        return value

    def value(index: int, argument):
        unread = index == 0 and node.op in (FILL, COPY)
        if isinstance(argument, Region):
            dtype = TO_TINY[argument.dtype]
            rank = len(argument.size)
            return _placeholder(device, dtype, rank) if unread else stand_in(argument, next(moving), dtype)
        if isinstance(argument, Number):
            way = next(moving) if moves(node.op, argument) else Way(Motion(0), 1, 0, 1)
            if way.motion.lifts or numbers.is_input(node, index, way.positions(argument.position)):
                is_float = isinstance(argument.value, float)
                return stand_in(Lifted(argument.position, is_float), way, numbers.dtype(node, is_float))
            return argument.value
        if isinstance(argument, Lifted):
            return stand_in(argument, next(moving), numbers.dtype(node, argument.is_float))
        return argument

    positional, keyword = [], {}
    for index, ((name, is_keyword, _), argument) in enumerate(zip(schema, node.args, strict=False)):
        if is_keyword:
            keyword[name] = value(index, argument)
        else:
            positional.append(value(index, argument))
    metas = tuple(None if out is None else Meta((1,) * len(out.size), out.dtype) for out in node.outs)
    made = lowering(positional, keyword, meta=metas)
    results = []
    for out, result in zip(node.outs, made if isinstance(made, (tuple, list)) else [made], strict=True):
        if out is not None:
            results.append((out, next(moving), result.cast(TO_TINY[out.dtype]).uop))
    return Statement(operands, results)


def _with_loads(expression: UOp, loads: dict[UOp, UOp]) -> UOp:
    """The expression of one element, placeholders replaced."""
    scalar: dict[UOp, UOp | None] = dict(loads)
    for u in expression.toposort():
        if u in scalar:
            continue
        if u.op is Ops.CONST:
            scalar[u] = u
        elif u.op in _LEFT_OUT:
            scalar[u] = scalar[u.src[0]]
        elif u.op in GroupOp.ALU | {Ops.CAST, Ops.BITCAST} and all(scalar[s] is not None for s in u.src):
            scalar[u] = u.replace(dtype=None, src=tuple(scalar[s] for s in u.src))
        else:
            scalar[u] = None  # a shape, or nothing an element can be made of
    if (value := scalar[expression]) is None:
        raise Unfit
    return value


class _Kernel:
    """The kernel's buffers, and its statements as it is written."""

    def __init__(self, rounds: Rounds, bodies: list[list[Statement]], flats: list[Flat], numbers: Numbers):
        self.rounds, self.bodies = rounds, bodies
        statements = [statement for body in bodies for statement in body]
        dtypes: dict[int, DType] = {}
        self.written: list[int] = []
        for statement in statements:
            for operand in statement.operands:
                if isinstance(operand.part, Region) and not operand.way.motion.private:
                    dtypes.setdefault(operand.part.storage, TO_TINY[in_memory(operand.part).dtype])
            for out, way, _ in statement.results:
                if not way.motion.private and out.storage not in self.written:
                    self.written.append(out.storage)
                    dtypes.setdefault(out.storage, TO_TINY[in_memory(out).dtype])
        read = [storage for storage in dtypes if storage not in self.written]
        self.versions = [flats[storage].begin(dtypes[storage]) for storage in self.written]
        self.outs = [
            fresh(flats[storage].whole(dtypes[storage])) if version is None else Tensor(version.state)
            for storage, version in zip(self.written, self.versions, strict=True)
        ]
        self.inputs = [flats[storage].whole(dtypes[storage]) for storage in read]
        self.buffer_of: dict[int | str, int] = {storage: i for i, storage in enumerate([*self.written, *read])}
        self.starts: dict[UOp, int] = {}
        for statement in statements:
            for operand in statement.operands:
                if isinstance(operand.part, Lifted):
                    self.add_numbers(operand, numbers)

    def add_numbers(self, operand: Operand, numbers: Numbers) -> None:
        part = operand.part
        assert isinstance(part, Lifted)
        positions = [part.position]
        for size, step in zip(part.size, part.step, strict=True):
            positions = [p + i * step for p in positions for i in range(size)]
        moved = [p + turn for turn in operand.way.positions(0) for p in positions]
        table, self.starts[operand.placeholder] = numbers.table(moved, part.is_float)
        if (key := f"numbers {part.is_float}") not in self.buffer_of:
            self.buffer_of[key] = len(self.outs) + len(self.inputs)
            self.inputs.append(table)

    def place(self, part: Region, moved: UOp, at: list[UOp]) -> UOp:
        strides = zip(reversed(at), reversed(part.size), reversed(part.stride), strict=False)
        return sum((c * stride for c, size, stride in strides if size > 1), moved + part.offset)

    def number_place(self, operand: Operand, turn: Turn, at: list[UOp]) -> UOp:
        part, way = operand.part, operand.way
        inner = Region(0, torch.int64, part.size, strides_of(part.size), self.starts[operand.placeholder])
        each = prod(part.size)
        a_round = each * (way.iterations if way.motion.delta else 1)
        moving = replace(way, motion=Motion(each if way.motion.delta else 0), advance=a_round if way.advance else 0)
        return self.place(inner, turn.moved(moving), at)

    def write(self, loops: Loops, *buffers: UOp) -> None:
        with loops.loop(self.rounds.count) as number:
            for loop, statements in zip(self.rounds.loops, self.bodies, strict=True):
                with loops.loop(loop.count) as iteration:
                    for nest in nests(loop):
                        self.nest(loops, [statements[n] for n in nest], Turn(number, iteration), buffers)

    def nest(self, loops: Loops, statements: list[Statement], turn: Turn, buffers) -> None:
        size = statements[0].results[0][0].size
        with loops.share(prod(size)) as element:
            at = [element // step % z for z, step in zip(size, strides_of(size), strict=True)]
            known: dict[Region, UOp] = {}
            for statement in statements:
                self.state(loops, statement, turn, at, buffers, known)
        loops.sync()

    def state(self, loops: Loops, statement: Statement, turn: Turn, at: list[UOp], buffers, known) -> None:
        """One statement. Results are variables first, so that what comes after changes nothing they were made of."""

        def load(operand: Operand) -> UOp:
            part = operand.part
            if isinstance(part, Lifted):
                table = buffers[self.buffer_of[f"numbers {part.is_float}"]]
                return loops.load(table, self.number_place(operand, turn, at)).cast(operand.dtype)
            if part in known and operand.way.motion.private:
                return loops.value(known[part])
            buffer = buffers[self.buffer_of[part.storage]]
            return loops.load(buffer, self.place(part, turn.moved(operand.way), at)).cast(operand.dtype)

        loads = {operand.placeholder: load(operand) for operand in statement.operands}
        made = [loops.variable(_with_loads(result, loads), result.dtype) for _, _, result in statement.results]
        for (out, way, _), variable in zip(statement.results, made, strict=True):
            if way.motion.private:
                known[out] = variable
            else:
                target = buffers[self.buffer_of[out.storage]]
                value = loops.value(variable).cast(target.dtype)
                loops.store((target, self.place(out, turn.moved(way), at), value))


def _body(rounds: Rounds, number: int, numbers: Numbers, device: str) -> list[Statement]:
    """The statements of one of the loops."""
    loop, found = rounds.loops[number], []
    for node, motions, advances in zip(loop.nodes, loop.motions, rounds.advances[number], strict=True):
        moving = zip(motions, advances, strict=True)
        ways = [Way(motion, loop.count, advance, rounds.count) for motion, advance in moving]
        found.append(_statement(node, ways, numbers, device, schema_of(node.op)))
    return found


def lower_sequence(rounds: Rounds, flats: list[Flat], numbers: Numbers, device: str) -> None:
    """Runs the loops on the storages' values. Raises Unfit, with nothing changed, where they cannot be one kernel."""
    bodies = [_body(rounds, number, numbers, device) for number in range(len(rounds.loops))]
    statements = [statement for body in bodies for statement in body]
    for statement in statements:
        for _, _, result in statement.results:
            _with_loads(result, {operand.placeholder: operand.placeholder for operand in statement.operands})
    used = [(o.part, o.dtype) for s in statements for o in s.operands if isinstance(o.part, Region)]
    written = [(out, result.dtype) for s in statements for out, _, result in s.results]
    if any(flats[region.storage].is_ragged(dtype) for region, dtype in used + written):
        raise Unfit
    kernel = _Kernel(rounds, bodies, flats, numbers)
    width = max(region.numel for region, _ in written)
    older = {name for versions in (flats[s].versions for s in kernel.written) if versions for name in versions.names}
    results = run_into("sequence", kernel.write, 1, width, kernel.outs, *kernel.inputs, overwritten=older)
    for storage, version, value in zip(kernel.written, kernel.versions, results, strict=True):
        if version is None:
            flats[storage].replace(value)
        else:
            version.state = value.uop
            flats[storage].finish(version)
