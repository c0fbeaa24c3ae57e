"""Compiles the kernels of a schedule: each once, many of them in parallel processes."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from itertools import starmap
from multiprocessing import parent_process
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

_workers: ProcessPoolExecutor | None = None
_searchers: Pool | None = None


def _start_worker() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    worker._init_worker()
    choices.apply()


def _end_with_parent() -> None:
    """Workers hold the ends of the pool's pipes for each other: that it was killed, they would not hear there."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _compile(number: int, ast: UOp, renderer: Renderer, context: dict):
    with Context(**context):
        return number, to_program(ast, renderer)


def _size_of_pool() -> int:
    return min(PARALLEL.value, os.cpu_count() or 1)


def _in_workers(tasks: list[tuple]) -> Iterator[tuple[int, UOp]]:
    """Results as they come. Of the two pools that Python has, this one notices that somebody ended a worker (for want
    of memory, say); the other waits for its task for ever."""
    global _workers
    if _workers is None:
        _workers = ProcessPoolExecutor(_size_of_pool(), worker._WorkerContext(), _start_worker)
    try:
        for done in as_completed([_workers.submit(_compile, *task) for task in tasks]):
            yield done.result()
    except BaseException as error:
        stopped, _workers = _workers, None
        stopped.shutdown(wait=False, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise ChildProcessError("a process that compiled kernels was ended") from error
        raise


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
    global _searchers
    progress, found = _Progress(len(calls), "searching", "searched"), []
    if _searchers is None and PARALLEL.value > 1:  # what it tries is compiled as we compile
        _searchers = worker.worker_pool = worker._WorkerContext().Pool(_size_of_pool(), _start_worker)
        atexit.register(_searchers.terminate)
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
    results = _in_workers(tasks) if parallel else starmap(_compile, tasks)
    for done, (i, program) in enumerate(results, 1):
        to_program_cache[names[i]] = program
        progress.update(done)
    progress.close()
    ready = [c.replace(src=(to_program_cache[keys[c]], *c.src[1:])) if c in keys else c for c in calls]
    # What is left (local sizes on devices that want them) needs no compiling.
    return list(compile_linear(UOp(Ops.LINEAR, src=tuple(ready)), beam=0).src)
