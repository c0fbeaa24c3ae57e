"""Compiles the kernels of a schedule: each once, many of them in parallel processes."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import deque
from multiprocessing.pool import Pool

from tinygrad import Device
from tinygrad.codegen import (
    do_estimates,
    do_linearize,
    do_render,
    full_rewrite_to_sink,
    to_program,
    to_program_cache,
    to_program_context,
    to_program_key,
)
from tinygrad.engine import worker
from tinygrad.engine.realize import compile_linear
from tinygrad.helpers import BEAM, PARALLEL, Context, getenv, to_tuple
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import Ops, ProgramInfo, UOp

from . import choices

# Starting processes costs as much as this many kernels.
WORTH_A_POOL = 8

# Of the kernels that were compiled last, the operations: what the time that takes stands for.
OPERATIONS: deque[int] = deque(maxlen=4096)

_pool: Pool | None = None


def _start_worker() -> None:
    worker._init_worker()
    choices.apply()


def _compile(task):
    number, ast, renderer, context = task
    with Context(**context):
        return number, to_program(ast, renderer)


def _workers() -> Pool:
    global _pool
    if _pool is None:
        _pool = worker._WorkerContext().Pool(min(PARALLEL.value, os.cpu_count() or 1), _start_worker)
        atexit.register(_pool.terminate)
    return _pool


def stop_workers() -> None:
    global _pool
    if _pool is not None:
        _pool.terminate()
        _pool = worker.worker_pool = None


class _Progress:
    """One line on a terminal for a compile that takes more than a second."""

    def __init__(self, total: int, doing: str = "compiling", done: str = "compiled"):
        self.total, self.words = total, (doing, done)
        self.start, self.shown = time.perf_counter(), False
        self.enabled = sys.stderr.isatty()

    def update(self, done: int) -> None:
        if self.enabled and (self.shown or time.perf_counter() - self.start > 1):
            self.shown = True
            print(f"\rtiny: {self.words[0]} kernels {done}/{self.total}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.shown:
            took = time.perf_counter() - self.start
            print(f"\rtiny: {self.words[1]} {self.total} kernels in {took:.1f} s", file=sys.stderr)


def _searched(calls: list[UOp], beam: int) -> list[UOp]:
    """The calls with the fastest kernels that tinygrad's search finds. It keeps what it found on disk."""
    progress, found = _Progress(len(calls), "searching", "searched"), []
    worker.worker_pool = _workers() if PARALLEL.value > 1 else None  # what it tries is compiled as we compile
    for done, call in enumerate(calls, 1):
        found += compile_linear(UOp(Ops.LINEAR, src=(call,)), beam=beam).src
        progress.update(done)
    progress.close()
    return found


def rendered(ast: UOp, renderer: Renderer) -> UOp:
    """A kernel's expression as a program with source code, but none for the machine."""
    sink = full_rewrite_to_sink(ast, renderer, optimize=ast.tag is None)
    program = UOp(Ops.PROGRAM, src=(sink,), arg=ProgramInfo.from_sink(sink, renderer.target))
    program = do_linearize(renderer, program, sink)
    counted = do_estimates(program, *program.src)
    program = program if counted is None else counted
    return do_render(renderer, program, program.src[1])


def compiled(calls: list[UOp]) -> list[UOp]:
    """The calls with machine code in the place of their kernels' expressions."""
    choices.apply()
    beam = getenv("JITBEAM", BEAM.value)
    if beam:
        return _searched(calls, beam)
    wanted = {c: (c.src[0], Device[to_tuple(c.device)[0]].renderer) for c in calls if c.src[0].op is Ops.SINK}
    keys = {c: to_program_key(*w) for c, w in wanted.items()}
    missing = {key: wanted[c] for c, key in keys.items() if key not in to_program_cache}
    context = {v.key: v.value for v in to_program_context}
    OPERATIONS.extend(len(w[0].toposort()) for w in wanted.values())
    tasks = [(i, *w, context) for i, w in enumerate(missing.values())]
    parallel = len(tasks) >= WORTH_A_POOL and PARALLEL.value > 1
    names = list(missing)
    progress = _Progress(len(tasks))
    try:
        results = _workers().imap_unordered(_compile, tasks) if parallel else map(_compile, tasks)
        for done, (i, program) in enumerate(results, 1):
            to_program_cache[names[i]] = program
            progress.update(done)
    except BaseException:
        if parallel:
            stop_workers()
        raise
    progress.close()
    ready = [c.replace(src=(to_program_cache[keys[c]], *c.src[1:])) if c in keys else c for c in calls]
    # What is left (local sizes on devices that want them) needs no compiling.
    return list(compile_linear(UOp(Ops.LINEAR, src=tuple(ready)), beam=0).src)
